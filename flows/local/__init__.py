"""What a run on this machine brings along: environment, Prefect server, handling of signals."""
