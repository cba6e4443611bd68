"""Scoring of rows with a registered model."""
