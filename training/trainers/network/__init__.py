"""What the trainers of neural networks share: feeds, inputs, the progress of a worker, the serving model."""
