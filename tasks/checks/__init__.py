"""Checks of a plan and of its model before a run trains."""
