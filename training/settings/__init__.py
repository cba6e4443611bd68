"""The settings of a run: their definition, and the parsing and validation of overrides."""
