"""Removal of what a home need not keep, and of what killed runs left outside of homes."""
