"""Records that an earlier version of Evergreen wrote, which served image classifiers alone, are still read."""

import json
from pathlib import Path

import pytest

from tasks.gate import judge
from training.problems import problem_of
from training.problems.probabilities import ClassificationScore
from training.records import Evaluation, Look, TrainedModel
from training.settings.schema import GateSettings
from training.storage.record_files import read_record

OWNER = "f28d1e635b530863"
# As that version wrote it, with its checksum, but for the path of the home.
TRAINED = (
    '{"run_key": "f28d1e635b53086371fef7e6ecaa352ea45bb8ecb4c716f4d6fd01e8377a9dbf", "weights": '
    '"/home/evergreen/runs/digits/f28d1e635b530863/model/weights.safetensors", "weights_digest": '
    '"13f39345a7c2c9757e0040530a9dffd9247b9aa17f94ee126d20df287c74b385", "selected_epoch": 2, "steps": 42, '
    '"world_size": 1, "device": "cpu", "history": [{"epoch": 1, "step": 21, "train_loss": 1.3764561960496098, '
    '"train_accuracy": 0.6197289156626506, "validation_loss": 0.7631491458777225, "validation_accuracy": '
    '0.8484848484848485, "learning_rate": 0.0028910861626005773, "images_per_s": 3382.832614567202, "rows": 1328, '
    '"checksum": 11107973472}, {"epoch": 2, "step": 42, "train_loss": 0.5481455670781883, "train_accuracy": '
    '0.9126506024096386, "validation_loss": 0.3531640659679066, "validation_accuracy": 0.9242424242424242, '
    '"learning_rate": 7.70666566718009e-06, "images_per_s": 4354.041344142007, "rows": 1328, "checksum": '
    '11107973472}], "attempts": 1, "seconds": 1.0314288760346244, "goodput": {"total_s": 1.0314288760346244, '
    '"parts": {"data wait": 0.030554428998584626, "checkpoint": 0.002733677003561752, "compute": 0.6521113690287166, '
    '"communication": 0.0024934520006354433, "validation": 0.023472922999644652, "replay check": '
    '0.32006302600348135}}, "reproducible": true, "reproducible_reason": "a new model replayed 5 steps from the '
    'checkpoint at step 21 to the same bits", "sha256_of_the_rest": '
    '"1a6a412922dee764ca583b7a30f81b99811283f3b103faf1edafb23f7c95573e"}'
)
SCORE = (
    '{"accuracy": 0.75, "low": 0.3, "high": 0.95, "confidence": 0.95, "log_loss": 0.5, "macro_f1": 0.73, '
    '"calibration_error": 0.1, "classes": [{"name": "a", "rows": 2, "precision": 1.0, "recall": 0.5, "f1": 0.67}, '
    '{"name": "b", "rows": 2, "precision": 0.67, "recall": 1.0, "f1": 0.8}], "confusion": [[1, 1], [0, 2]], '
    '"latency_ms": 0.33, "images_per_s": 13731.4}'
)
EVALUATION = (
    f'{{"rows": 4, "candidate": {SCORE}, "champion": {SCORE}, "champion_version": "1", "both_right": 3, '
    '"only_candidate_right": 0, "only_champion_right": 0, "both_wrong": 1, "class_changes": [[0, 0], [0, 0]], '
    '"mistakes": [{"row": 1, "truth": "a", "predicted": "b", "probability": 0.6}], "predictions": "p.parquet", '
    '"anchor_version": null, "left_out": 0, "training_rows_known": true}'
)
LOOK = (
    '{"question": "better", "measure": "accuracy", "reference_version": "1", "reference_excess": 0.0, "key": "ab", '
    '"number": 1, "error_control": "joint", "alpha": 0.05, "horizon": 365, "margin": 0.0, "rows": 4, "rows_digest": '
    '"cd", "gained": 0, "lost": 0, "reference_wrong": 1, "difference": 0.0, "statistic": 0.0, "p": 1.0, "boundary": '
    '3.29, "level": 0.0005, "spent": 0.0005, "crossed": "", "passed": false}'
)


def test_a_finished_training_with_accuracies_by_their_old_names(tmp_path: Path) -> None:
    (tmp_path / "trained.json").write_text(TRAINED)
    trained = read_record(tmp_path / "trained.json", TrainedModel, OWNER)
    assert trained.selected().validation_score == 0.9242424242424242
    assert trained.selected().train_score == 0.9126506024096386
    assert TrainedModel.model_validate_json(trained.model_dump_json()) == trained


def test_an_evaluation_is_one_of_a_classification() -> None:
    evaluation = Evaluation.model_validate_json(EVALUATION)
    assert isinstance(evaluation.candidate, ClassificationScore)
    assert isinstance(evaluation.champion, ClassificationScore)
    assert problem_of(evaluation.candidate).name == "classification"
    assert evaluation.largest_errors == ()


def test_a_recorded_comparison_is_judged_as_before() -> None:
    look = Look.model_validate_json(LOOK)
    verdict = judge(Evaluation.model_validate_json(EVALUATION), GateSettings(), (look,))
    assert not verdict.promote
    assert [rule.name for rule in verdict.rules] == ["floor", "better", "class_drop"]
    assert verdict.rules[0].explanation == "accuracy 75.00 % on 4 rows reaches the floor of 0.00 %"
    assert verdict.summary == "Kept version 1: the new model got as many of 4 rows right"
    assert verdict.rules[1].explanation.startswith(
        "the candidate alone is right on 0 rows, the champion alone on 0: p = 1, z = 0.00; comparison "
        "1 with version 1 needs z above 3.29 or p at most 0.0005: not shown to be better. To pass on these 4 "
        "rows, the gain must be at least about "
    )


def test_a_score_of_neither_problem_is_refused() -> None:
    content = json.loads(EVALUATION)
    content["candidate"] |= {"rmse": 1.0}
    with pytest.raises(ValueError, match="candidate"):
        Evaluation.model_validate(content)
