"""What a run on this machine sets up: its environment, a Prefect server, and signal handlers."""
