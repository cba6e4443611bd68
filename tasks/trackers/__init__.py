"""Metrics and parameters on their way to MLflow, and the home's own MLflow store."""
