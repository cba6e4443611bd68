"""The trainer `tensorflow`: a Keras model on TensorFlow, with `tf.distribute.MultiWorkerMirroredStrategy`."""
