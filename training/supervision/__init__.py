"""Supervision: training is started, watched, stopped and started again until the model is finished."""
