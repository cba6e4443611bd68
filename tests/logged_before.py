"""Models of tables as the release before registered them: MLflow's own Python function, which takes encoded columns."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tasks.model_formats.base import metadata_of
from tasks.model_formats.logged_models import log_with_flavor, output_schema
from training.records import DatasetVersion, TrainedModel


def log_trees(
    run_id: str,
    _: Any,
    version: DatasetVersion,
    trained: TrainedModel,
    example: npt.NDArray[Any],
    metadata: dict[str, Any],
) -> str:
    """As `log_model` of the format of trees."""
    import mlflow.xgboost
    import xgboost

    assert version.table is not None
    return log_with_flavor(
        run_id,
        version,
        mlflow.xgboost,
        "mlflow.xgboost",
        metadata,
        xgb_model=xgboost.Booster(model_file=trained.weights),
        model_format="ubj",
        signature=encoded_signature(version),
        input_example=pd.DataFrame(
            np.asarray(example, np.float64), columns=[column.name for column in version.table.columns]
        ),
        pip_requirements=["mlflow", "xgboost", "numpy", "pandas"],
    )


def log_program(
    module: Any, run_id: str, version: DatasetVersion, weights: str, example: Any, metadata: Any
) -> str:
    """As `log_model` of the format of programs; `module` is the serving module."""
    import mlflow.pytorch
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    class Flavor:
        @staticmethod
        def save_model(path: str, mlflow_model: Any, **options: Any) -> None:
            mlflow.pytorch.save_model(path=path, mlflow_model=mlflow_model, **options)
            mlflow_model.saved_input_example_info = None
            for name in ("input_example.json", "serving_input_example.json"):
                (Path(path) / name).unlink(missing_ok=True)
            mlflow_model.signature = encoded_signature(version)
            mlflow_model.save(str(Path(path) / "MLmodel"))

    tensors = Schema([TensorSpec(np.dtype("float32"), (-1, *version.shape))])
    return log_with_flavor(
        run_id,
        version,
        Flavor,
        "mlflow.pytorch",
        metadata,
        pytorch_model=module,
        signature=ModelSignature(inputs=tensors, outputs=output_schema(version)),
        input_example=example,
        serialization_format="pt2",
        extra_files=[weights],
        pip_requirements=["mlflow", "torch", "numpy"],
    )


def metadata_before(version: DatasetVersion) -> dict[str, Any]:
    """The metadata, which did not name the format."""
    said = metadata_of(version, "")
    del said["format"]
    return said


def encoded_signature(version: DatasetVersion) -> Any:
    """One float column for each feature."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema

    assert version.table is not None
    inputs = Schema([ColSpec(DataType.double, column.name) for column in version.table.columns])
    return ModelSignature(inputs=inputs, outputs=output_schema(version))
