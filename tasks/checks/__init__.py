"""Checks of a plan, its model and its object store before a run trains."""
