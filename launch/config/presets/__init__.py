"""Named settings: the papers', easy ones to begin with, and curricula (TOML files)."""
