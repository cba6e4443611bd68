"""LightGBM on a table of numbers, with the guides' parameters."""

from evergreen import LightGBM, Recipe, Regression, Table

recipe = Recipe(
    "bench-trees-lightgbm",
    source=Table("rows.parquet", target="y"),
    problem=Regression(),
    trainer=LightGBM(rounds=100, learning_rate=0.1, num_leaves=31),
)
