"""Names and types of settings, as files, calls and users of other libraries write them."""
