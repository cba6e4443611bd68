"""Object stores, such as S3 buckets: they hold a run's checkpoints, model and dataset when `storage.url` is set."""
