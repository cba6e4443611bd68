"""Training: recipes, data, sample order, loop, checkpoints. Plain PyTorch and Ray; knows neither Prefect nor MLflow."""
