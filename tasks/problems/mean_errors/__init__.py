"""The parts of the pipeline's tasks for problems that are scored by a mean error, and have no parts of their own."""
