"""P17-xgboost: rows per second of XGBoost's rounds inside Evergreen and under plain Ray Train."""

from benchmarks.baselines.trees_pair import trees_row

ROW = trees_row("xgboost", "XGBoost")
