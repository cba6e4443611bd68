"""Supervision: starts, monitors, stops and restarts training until the model is finished."""
