"""Preprocessing of tables: preprocessors of Ray Data, fitted by Evergreen on training rows and applied in NumPy."""
