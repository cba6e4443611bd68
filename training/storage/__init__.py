"""Storage: paths of the files in a home, atomic writes, and records with checksums."""
