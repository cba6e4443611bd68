"""Remove files and versions that a home no longer needs, and leftovers of killed runs outside of homes."""
