"""Training: recipes, data, trainers, checkpoints, supervision and Ray. Imports neither Prefect nor MLflow."""
