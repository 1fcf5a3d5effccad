"""Names and types of settings in files, in calls and in other libraries."""
