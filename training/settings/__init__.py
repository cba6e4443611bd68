"""The settings of a run: what they are, and how overrides are read and checked."""
