"""Recipe for scikit-learn's table of breast cancer (569 tissue samples, 30 measures of their cells): LightGBM."""

from evergreen import BundledTable, Classification, GateSettings, LightGBM, Recipe, ScalingSettings, Settings

recipe = Recipe(
    name="breast-cancer-lightgbm",
    summary="scikit-learn's breast cancer table, LightGBM",
    source=BundledTable("breast_cancer"),
    problem=Classification(),
    trainer=LightGBM(rounds=60, num_leaves=7, learning_rate=0.1, feature_fraction=0.8),
    settings=Settings(scaling=ScalingSettings(num_workers=2), gate=GateSettings(floor=0.85)),
)
