"""What happens, in order: one flow a file, and the command line."""
