"""Recipe for scikit-learn's table of breast cancer (569 tissue samples, 30 measures of their cells): boosted trees."""

from evergreen import BundledTable, Classification, GateSettings, Recipe, ScalingSettings, Settings, XGBoost

recipe = Recipe(
    name="breast-cancer",
    summary="scikit-learn's breast cancer table, XGBoost",
    source=BundledTable("breast_cancer"),
    problem=Classification(),
    trainer=XGBoost(rounds=60, max_depth=3, learning_rate=0.1, subsample=0.8, colsample_bytree=0.8),
    settings=Settings(scaling=ScalingSettings(num_workers=2), gate=GateSettings(floor=0.85)),
)
