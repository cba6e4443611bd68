"""P17-tensorflow: rows per second of TensorFlow inside Evergreen and under plain Ray Train.

TensorFlow has an environment of its own: `make setup EXTRAS=tensorflow`, then
`.venv-tensorflow/bin/python -m benchmarks --rows P17-tensorflow`.
"""

from benchmarks.baselines.framework_pair import framework_row

ROW = framework_row("tensorflow", "TensorFlow")
