"""What the rows share: the images, Evergreen's trainings on them, and the programs of column B."""
