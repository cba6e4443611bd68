"""The trainer `xgboost`: gradient-boosted trees on tables, on one worker or several."""
