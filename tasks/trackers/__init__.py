"""Trackers: send metrics and parameters to MLflow and other programs; the MLflow store embedded in a home."""
