"""Where files of a home lie, and how they are written: whole or absent, with checksums."""
