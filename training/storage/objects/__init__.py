"""Where artifacts are stored when `storage.url` is set: objects by key, for example in a bucket of S3."""
