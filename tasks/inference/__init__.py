"""Batch prediction: score rows with a registered model."""
