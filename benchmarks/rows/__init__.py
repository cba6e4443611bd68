"""One module per row, whose `ROW` defines the measurement. Side A is Evergreen, side B what it is compared with."""

from importlib import import_module

from benchmarks.harness.row import Row

# A run may be cut off, so the rows that docs/performance.md discusses come first.
_MODULES = (
    "whole_run_against_bare_script",
    "launch_to_first_step",
    "reading_images",
    "ingest_alone",
    "metric_points",
    "growth_in_rows",
    "recovery_after_kill",
    "loop_against_torchrun",
    "default_path_against_guides",
    "durability_cost",
    "feeding_cost",
    "checkpoint_wait",
    "preparation_time",
    "replay_check_cost",
    "growth_in_retrainings",
    "resume_inside_epoch",
    "goodput_under_kills",
    "flow_overhead",
    "scoring_speed",
    "growth_in_versions",
    "growth_in_runs",
    "virtual_shards_cost",
    "lightning_against_guides",
    "accelerate_against_guides",
    "transformers_against_guides",
    "keras_against_guides",
    "fsdp_against_guides",
    "deepspeed_against_guides",
    "tensorflow_against_guides",
    "xgboost_against_guides",
    "lightgbm_against_guides",
    "first_run_against_earlier_commit",
    "commands_against_import",
    "planned_time",
    "start_at_size",
    "growth_in_retrainings_on_cluster",
    "gpu_feeding",
    "gpu_epoch",
)


def all_rows() -> list[Row]:
    """All rows, in the order in which they are measured."""
    return [import_module(f"benchmarks.rows.{name}").ROW for name in _MODULES]


def find_row(row_id: str) -> Row:
    """The row with this id. Raises KeyError if there is none."""
    return {row.id: row for row in all_rows()}[row_id]
