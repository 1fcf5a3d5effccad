"""The compiled route of MNM."""
