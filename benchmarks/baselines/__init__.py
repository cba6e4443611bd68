"""Helpers of the rows: the images, trainings with Evergreen, and the programs that column B measures."""
