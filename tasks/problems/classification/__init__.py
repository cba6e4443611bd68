"""Classification in the pipeline's tasks."""
