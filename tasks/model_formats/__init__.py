"""Model formats: export a trained model, log it to MLflow, and check exported programs before they are loaded."""
