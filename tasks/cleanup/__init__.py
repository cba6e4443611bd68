"""Garbage collection: remove what homes and object stores no longer need, and leftovers of killed runs elsewhere."""
