"""Recipe files that the rows train."""
