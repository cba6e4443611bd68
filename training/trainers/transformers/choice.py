"""The trainer `transformers` in a recipe."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from training.errors import SettingError
from training.recipe import BuildModel
from training.trainer_arguments import check_function
from training.trainers.choice import BySettings
from training.trainers.transformers.settings import TransformersArguments, TransformersSettings

if TYPE_CHECKING:
    from torch import nn

_OTHER_NAMES = {  # arguments of TrainingArguments and Trainer that have another name, or another place, in a recipe
    "args": "give the fields of TrainingArguments to Transformers(...) one by one",
    "bf16": 'use precision="bfloat16"',
    "callbacks": "leave them out; Evergreen validates, saves checkpoints, and logs",
    "compute_loss_func": "the loss is that of the recipe's problem",
    "compute_metrics": "use metrics={...} of Recipe",
    "data_collator": "leave it out; the rows of a dataset have one shape",
    "data_seed": "use settings=Settings(seed=...)",
    "eval_dataset": "leave it out; data.validation_share of the rows are validation rows",
    "eval_steps": "leave it out; Evergreen validates after each epoch",
    "eval_strategy": "leave it out; Evergreen validates after each epoch",
    "fp16": 'use precision="float16"',
    "gradient_checkpointing": "call model.gradient_checkpointing_enable() in build_model",
    "load_best_model_at_end": 'use select="best", the default',
    "logging_steps": "use settings=Settings(tracking=TrackingSettings(log_every_steps=...))",
    "logging_strategy": "use settings=Settings(tracking=TrackingSettings(log_every_steps=...))",
    "model": "give build_model, a function that returns a new model",
    "model_init": "give build_model, a function that returns a new model",
    "num_train_epochs": "use epochs",
    "output_dir": "leave it out; checkpoints and model are in the run's folder",
    "per_device_train_batch_size": "use global_batch_size, the rows of a step over all workers and passes",
    "processing_class": "use tokenizer, a path or a name on Hugging Face's hub",
    "report_to": "use settings=Settings(tracking=TrackingSettings(also=...))",
    "save_steps": "use settings=Settings(checkpoint=CheckpointSettings(every_steps=...))",
    "save_strategy": "use settings=Settings(checkpoint=CheckpointSettings(every_steps=...))",
    "seed": "use settings=Settings(seed=...)",
    "train_dataset": "give the recipe a source",
    "use_cpu": 'use settings=Settings(scaling=ScalingSettings(use_gpu="no"))',
    "warmup_ratio": "use warmup_steps, a number below 1",
}


class Transformers(BySettings):
    """The trainer `transformers`: the Trainer of Hugging Face's Transformers. Its settings: `TransformersSettings`.

    `Transformers(build_model, epochs=3, global_batch_size=32)`. `build_model(shape, outputs)` returns a new
    `transformers.PreTrainedModel`, or another module, whose output is (rows, outputs) or has such `logits`; `shape` and
    `outputs` are those of :class:`training.recipe.Torch`. Token ids go to the model as `input_ids`, with an
    `attention_mask` that leaves out padding; the rows of images and tables are the model's first argument.

    `tokenizer` is the tokenizer of the recipe's texts, as in :class:`training.data.sources.text.Text`, whose own
    `tokenizer` may name the same or none.

    Raises :class:`training.errors.SettingError` for an unknown or invalid setting, and for a tokenizer that
    is an object.
    """

    SECTION = TransformersSettings

    def __init__(
        self,
        build_model: BuildModel,
        tokenizer: str | Path | None = None,
        **settings: Unpack[TransformersArguments],
    ):
        if refused := sorted(_OTHER_NAMES.keys() & settings.keys()):
            raise SettingError(
                f"Transformers: {refused[0]} is not an argument here; {_OTHER_NAMES[refused[0]]}"
            )
        if not isinstance(tokenizer, str | Path | None):
            raise SettingError(
                f"Transformers: tokenizer is of type {type(tokenizer).__name__}; give the path of a tokenizer.json, or "
                "of a folder that has one, or a name on Hugging Face's hub"
            )
        check_function("Transformers", "build_model", build_model)
        super().__init__(**settings)
        self.tokenizer = tokenizer

        def build(shape: Any, outputs: int) -> "nn.Module":
            from training.trainers.transformers.logits import RowsToLogits

            return RowsToLogits(build_model(shape, outputs), getattr(shape, "padding", 0))

        self.build_model: BuildModel = build
