"""Image data: sources, preparation, immutable dataset versions, and the order in which training uses their rows."""
