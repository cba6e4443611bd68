"""Kinds of damage to a finished run, each with the invariants that it violates."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
from verified_run import EPOCH_END, EVERY_STEPS, Subject, edit, edit_lines, flip

from tasks.registry.aliases import CHAMPION, WEIGHTS_TAG
from tasks.trackers.mlflow_run import HOME_TAG, RUN_KEY_TAG


def trained(subject: Subject) -> Path:
    return subject.paths.model / "trained.json"


def checkpoint(subject: Subject) -> Path:
    return sorted(subject.paths.checkpoints.glob("step-*"))[0]


def part(subject: Subject, name: str = "train/part-00000.parquet") -> Path:
    return next(subject.home.datasets.glob(f"digits/*/{name}"))


def weights_flipped(subject: Subject) -> None:
    flip(subject.paths.model / "weights.safetensors")


def weights_gone(subject: Subject) -> None:
    (subject.paths.model / "weights.safetensors").unlink()


def weights_and_their_record_replaced(subject: Subject) -> None:
    other = next(run for run in subject.home.runs("digits").iterdir() if run != subject.paths.root)
    shutil.copy(other / "model" / "weights.safetensors", subject.paths.model)
    digest = json.loads((other / "model" / "trained.json").read_text())["weights_digest"]
    edit(trained(subject), lambda record: record.update(weights_digest=digest))


def version_names_other_weights(subject: Subject) -> None:
    subject.client.set_model_version_tag("digits", "1", WEIGHTS_TAG, "0" * 64)


def version_twice(subject: Subject) -> None:
    version = subject.client.get_model_version("digits", "1")
    subject.client.create_model_version(
        "digits", source=version.source, run_id=version.run_id, tags=version.tags
    )


def version_gone(subject: Subject) -> None:
    subject.client.delete_model_version("digits", "1")


def champion_moved_by_hand(subject: Subject) -> None:
    subject.client.set_registered_model_alias("digits", CHAMPION, "2")


def decisions_gone(subject: Subject) -> None:
    (subject.home.root / "decisions" / "digits.jsonl").unlink()


def registered_model_swapped(subject: Subject) -> None:
    paths = [
        Path(subject.client.get_model_version_download_uri("digits", number).removeprefix("file://"))
        for number in ("1", "2")
    ]
    shutil.rmtree(paths[0])
    shutil.copytree(paths[1], paths[0])


def point_twice(subject: Subject) -> None:
    edit_lines(subject.paths.metrics, lambda lines: lines.append(lines[3]))


def point_gone(subject: Subject) -> None:
    edit_lines(subject.paths.metrics, lambda lines: lines.pop(3))


def value_changed(subject: Subject) -> None:
    def change(lines: list[str]) -> None:
        point = json.loads(lines[3])
        point["values"]["train/loss"] += 1e-9
        lines[3] = json.dumps(point) + "\n"

    edit_lines(subject.paths.metrics, change)


def point_twice_in_mlflow(subject: Subject) -> None:
    run_id = subject.release.mlflow_run_id
    point = subject.client.get_metric_history(run_id, "train/loss")[0]
    subject.client.log_metric(run_id, "train/loss", point.value, point.timestamp + 1, point.step)


def point_between_in_mlflow(subject: Subject) -> None:
    subject.client.log_metric(subject.release.mlflow_run_id, "train/loss", 1.0, step=1)


def point_gone_in_mlflow(subject: Subject) -> None:
    with closing(sqlite3.connect(subject.home.root / "mlflow.db")) as store, store:
        store.execute("delete from metrics where key = 'validation/loss' and step = ?", (EPOCH_END,))


def final_number_changed(subject: Subject) -> None:
    with closing(sqlite3.connect(subject.home.root / "mlflow.db")) as store, store:
        store.execute("update metrics set value = value / 2 where key = 'macro_f1'")


def row_skipped(subject: Subject) -> None:
    edit(trained(subject), lambda record: record["history"][1].update(rows=1327))


def row_used_for_another(subject: Subject) -> None:
    checksum = json.loads(trained(subject).read_text())["history"][0]["checksum"]
    edit(trained(subject), lambda record: record["history"][0].update(checksum=checksum + 1))


def steps_done_again(subject: Subject) -> None:
    def change(lines: list[str]) -> None:
        attempt = json.loads(lines[1])
        lines[1] = json.dumps(attempt | {"reached": attempt["first_step"] + 2 * EVERY_STEPS + 1}) + "\n"

    edit_lines(subject.paths.attempts, change)


def first_attempt_forgotten(subject: Subject) -> None:
    edit_lines(subject.paths.attempts, lambda lines: lines.pop(0))


def attempts_out_of_order(subject: Subject) -> None:
    edit_lines(subject.paths.attempts, lambda lines: lines.append(lines[1]))


def fence_set_back(subject: Subject) -> None:
    subject.paths.fence.write_text("1.1")


def checkpoint_flipped(subject: Subject) -> None:
    flip(checkpoint(subject) / "state.pt", 1000)


def checkpoint_without_manifest(subject: Subject) -> None:
    (checkpoint(subject) / "MANIFEST.json").unlink()


def checkpoint_of_another_step(subject: Subject) -> None:
    checkpoint(subject).rename(subject.paths.checkpoints / "step-000000001")


def part_flipped(subject: Subject) -> None:
    flip(part(subject), 100)


def part_too_many(subject: Subject) -> None:
    shutil.copy(part(subject), part(subject).with_name("part-00009.parquet"))


def columns_flipped(subject: Subject) -> None:
    flip(part(subject, ".columns-train/inputs.npy"))


def recipe_changed(subject: Subject) -> None:
    file = subject.paths.recipe / "digits.py"
    file.write_text(file.read_text() + "changed = True\n")


def temporary_file_in_run(subject: Subject) -> None:
    (subject.paths.root / ".release.json.0a1b2c3d.tmp").touch()


def half_removed_checkpoint(subject: Subject) -> None:
    (subject.paths.checkpoints / ".step-000000004.removed").mkdir()


def temporary_folder_in_datasets(subject: Subject) -> None:
    (part(subject).parents[1] / ".columns-test.0a1b2c3d.tmp").mkdir()


def temporary_file_in_artifacts(subject: Subject) -> None:
    folder = subject.home.mlflow_artifacts / "digits" / subject.release.mlflow_run_id / "artifacts"
    (folder / ".report.html.tmp").touch()


def record_cut_short(subject: Subject) -> None:
    file = next(subject.paths.evaluation.glob("*/evaluation.json"))
    file.write_text(file.read_text()[:-20])


def attempt_line_cut_short(subject: Subject) -> None:
    edit_lines(subject.paths.failures, lambda lines: lines.append('{"number": 2, "at": 17'))


def asked_to_stop(subject: Subject) -> None:
    subject.paths.stop.write_text("SIGTERM")


def left_running(subject: Subject) -> None:
    subject.client.update_run(subject.release.mlflow_run_id, status="RUNNING")


def another_left_running(subject: Subject) -> None:
    ours = subject.client.get_run(subject.release.mlflow_run_id)
    tags = {HOME_TAG: ours.data.tags[HOME_TAG], RUN_KEY_TAG: "f" * 64, "evergreen.recipe": "other"}
    subject.client.create_run(ours.info.experiment_id, tags=tags)


def second_mlflow_run(subject: Subject) -> None:
    ours = subject.client.get_run(subject.release.mlflow_run_id)
    tags = {name: ours.data.tags[name] for name in (HOME_TAG, RUN_KEY_TAG)}
    made = subject.client.create_run(ours.info.experiment_id, tags=tags)
    subject.client.set_terminated(made.info.run_id)


def release_of_other_weights(subject: Subject) -> None:
    edit(subject.paths.release, lambda record: record.update(selected_epoch=1))


def alias_against_the_verdict(subject: Subject) -> None:
    edit(subject.paths.release, lambda record: record.update(alias="challenger"))


def verdict_turned(subject: Subject) -> None:
    edit(subject.paths.release, lambda record: record["verdict"].update(promote=False))


def verdict_turned_in_mlflow(subject: Subject) -> None:
    verdict = subject.release.verdict.model_dump(mode="json") | {"promote": False}
    subject.client.log_dict(subject.release.mlflow_run_id, verdict, "verdict.json")


def accuracy_embellished(subject: Subject) -> None:
    file = next(subject.paths.evaluation.glob("*/predictions.parquet"))
    table = pq.read_table(file)
    index = table.column_names.index("candidate")
    pq.write_table(table.set_column(index, "candidate", table["label"]), file)


def ingredient_changed(subject: Subject) -> None:
    edit(subject.paths.ingredients, lambda record: record["ingredients"]["versions"].update(numpy="1.0.0"))


def page_gone(subject: Subject) -> None:
    subject.paths.report.unlink()


DAMAGE: dict[Callable[[Subject], None], set[str]] = {
    weights_flipped: {"I1"},
    weights_gone: {"I1"},
    weights_and_their_record_replaced: {"I1", "I2", "I10"},
    version_names_other_weights: {"I1", "I2"},
    version_twice: {"I2"},
    version_gone: {"I2"},
    champion_moved_by_hand: {"I2"},
    decisions_gone: {"I2"},
    registered_model_swapped: {"I2"},
    point_twice: {"I3"},
    point_gone: {"I3"},
    value_changed: {"I3"},
    point_twice_in_mlflow: {"I3"},
    point_between_in_mlflow: {"I3"},
    point_gone_in_mlflow: {"I3"},
    final_number_changed: {"I3"},
    row_skipped: {"I4"},
    row_used_for_another: {"I4"},
    steps_done_again: {"I5"},
    first_attempt_forgotten: {"I5"},
    attempts_out_of_order: {"I5"},
    fence_set_back: {"I5"},
    checkpoint_flipped: {"I7"},
    checkpoint_without_manifest: {"I7"},
    checkpoint_of_another_step: {"I7"},
    part_flipped: {"I7"},
    part_too_many: {"I7"},
    columns_flipped: {"I7"},
    recipe_changed: {"I7"},
    temporary_file_in_run: {"I7"},
    half_removed_checkpoint: {"I7"},
    temporary_folder_in_datasets: {"I7"},
    temporary_file_in_artifacts: {"I7"},
    record_cut_short: {"I7"},
    attempt_line_cut_short: {"I7"},
    asked_to_stop: {"I8"},
    left_running: {"I9"},
    another_left_running: {"I9"},
    second_mlflow_run: {"I9"},
    release_of_other_weights: {"I10"},
    alias_against_the_verdict: {"I10"},
    verdict_turned: {"I10"},
    verdict_turned_in_mlflow: {"I10"},
    accuracy_embellished: {"I10"},
    ingredient_changed: {"I10"},
    page_gone: {"I10"},
}
