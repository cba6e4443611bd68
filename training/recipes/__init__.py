"""Recipes that come with Evergreen, one short file each."""
