"""Simulated years of nightly retraining on one test set: false promotions by the gate, and its power."""
