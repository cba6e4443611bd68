"""How a finished model is logged to MLflow, checked and loaded again."""
