"""Files of a training attempt: its job, the history, the fence, heartbeats, metric points and worker logs."""
