"""P17-lightgbm: rows per second of LightGBM's rounds inside Evergreen and under plain Ray Train."""

from benchmarks.baselines.trees_pair import trees_row

ROW = trees_row("lightgbm", "LightGBM")
