"""The steps of a retraining run, one per file: Prefect tasks that are thin wrappers around plain functions."""
