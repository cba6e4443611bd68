"""The trainer `transformers`: a model trained by the Trainer of Hugging Face's Transformers."""
