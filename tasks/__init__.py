"""The steps of a retraining run: thin Prefect shells round plain functions, one step a file."""
