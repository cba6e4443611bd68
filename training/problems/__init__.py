"""Learning problems: how the predictions of a model are scored, and how two models are compared."""
