"""Recipe files of the rows."""
