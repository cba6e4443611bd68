"""What an attempt leaves on disk and is told: its history, its fence, heartbeats, metric points and worker logs."""
