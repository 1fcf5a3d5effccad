"""The compiled route of linear recurrences."""
