"""The compiled route of the RMC."""
