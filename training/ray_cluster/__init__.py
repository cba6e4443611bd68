"""The Ray cluster of a run, and one attempt of a training on Ray Train."""
