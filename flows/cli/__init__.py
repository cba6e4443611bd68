"""The `evergreen` command."""
