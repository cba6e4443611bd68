"""Sixty nights of a table, good ones and bad ones, through the real command."""
