"""XGBoost on a table of numbers, with the guides' parameters."""

from evergreen import Recipe, Regression, Table, XGBoost

recipe = Recipe(
    "bench-trees-xgboost",
    source=Table("rows.parquet", target="y"),
    problem=Regression(),
    trainer=XGBoost(rounds=100, learning_rate=0.3, max_depth=6),
)
