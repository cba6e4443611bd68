"""Prefect flows, which run the steps in order, one flow per file; and the command line."""
