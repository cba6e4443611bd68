"""The trainer `lightgbm`: gradient-boosted trees on tables, on one worker or several."""
