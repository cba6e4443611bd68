"""Regression in the pipeline's tasks."""
