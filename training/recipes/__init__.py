"""Recipes included with Evergreen, one short file each."""
