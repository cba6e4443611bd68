"""Terminal output of a run: its progress, and the commands that it suggests afterwards."""
