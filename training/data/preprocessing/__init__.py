"""Preprocessing of tables: preprocessors of Ray Data that Evergreen fits on training rows, and applies in NumPy."""
