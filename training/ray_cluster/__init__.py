"""The Ray cluster of a run, and the execution of one training attempt on Ray Train."""
