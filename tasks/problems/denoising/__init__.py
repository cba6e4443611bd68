"""The parts of the pipeline's tasks that are specific to denoising models."""
