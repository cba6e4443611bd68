"""The trainer `keras`: a Keras model on Keras' torch backend, trained by Evergreen's own loop."""
