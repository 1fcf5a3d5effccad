"""The compiled route of matrix memories with a decay per element."""
