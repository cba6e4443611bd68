"""What a run shows on the terminal while it works, and the commands that it suggests afterwards."""
