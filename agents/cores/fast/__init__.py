"""Compiled CPU routes of the cores beside it; each is entered from one `if` and may be switched off."""
