"""Where and when Evergreen runs."""
