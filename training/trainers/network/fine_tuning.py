"""Fine-tuning: load given weights into a new model, and freeze parts of the model."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import nn  # noqa: TID253 - imported by processes that train

from training.attempts.job import TrainingJob
from training.checkpoints.weights import load_weights, weights_digest
from training.errors import DataError, SettingError, TrainingError
from training.trainers.network.modules import recipe_module

if TYPE_CHECKING:
    import torch

    from training.settings.fine_tuning import FineTuningSettings

    Weights = Mapping[str, torch.Tensor]

_LISTED = 12  # names in a message, at most


@dataclass(frozen=True)
class Started:
    """A model that starts from given weights: its frozen modules, and the digest of each frozen tensor by its name.

    `new` are the names of the tensors that start with new weights.
    """

    frozen: list[nn.Module] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    new: tuple[str, ...] = ()

    def check(self, weights: "Weights") -> None:
        """Raise :class:`TrainingError` if a frozen tensor has changed in `weights`, those of the trained model."""
        changed = [
            name
            for name, digest in self.digests.items()
            if name not in weights or weights_digest({name: weights[name]}) != digest
        ]
        if changed:
            raise TrainingError(
                f"training.freeze: {_few(changed)} changed in the training, although frozen: code of the recipe writes "
                "to these tensors. Remove that code, or leave these parts out of training.freeze."
            )


def initial_weights(job: TrainingJob) -> "dict[str, torch.Tensor] | None":
    """The weights that the training starts from; None: new ones.

    Raises :class:`DataError` if the run's copy of the weights is not what was planned with.
    """
    if not job.initial:
        return None
    weights = load_weights(job.paths.initial_weights)
    if weights_digest(weights) != job.initial:
        raise DataError(
            f"{job.paths.initial_weights}: not the weights that the run was planned with (digest differs). Remove "
            f"{job.paths.initial} and run again: the weights are copied again."
        )
    return weights


def start_from(
    module: nn.Module, weights: "Weights | None", options: "FineTuningSettings", outputs: int
) -> Started:
    """Load `weights` into a new model, and freeze the parts in `training.freeze`.

    If `weights` is None, the model keeps its new weights, and nothing is frozen.

    `module` is what :func:`training.trainers.network.modules.build_module` returns, and `outputs` the number of its
    outputs. A trainer's wrapper around the recipe's module may have a method `own_names(weights, new_head)`: it returns
    the weights under the names of that module, and the names of the module's tensors that `weights` may lack. A
    recipe's module may have the attribute `constant_buffers`, the names of buffers that Evergreen adds and no training
    changes: they are not taken from `weights`, which may be of a model without them or for another shape of images.

    Raises :class:`SettingError` for weights that do not fit the model, and for parts that can't be frozen.
    """
    if weights is None:
        return Started()
    own, new_head, may_lack = recipe_module(module), options.init_head == "new", frozenset[str]()
    if (own_names := getattr(module, "own_names", None)) is not None:
        weights, may_lack = own_names(weights, new_head)
    constant: frozenset[str] = getattr(own, "constant_buffers", frozenset())
    given = {name: tensor for name, tensor in weights.items() if name not in constant}
    new = take_weights(own, given, outputs, new_head, may_lack | constant) - constant
    return Started(freeze(own, options.freeze, new), _digests(own, options.freeze), tuple(sorted(new)))


def take_weights(
    module: nn.Module,
    weights: "Weights",
    outputs: int,
    new_head: bool,
    may_lack: AbstractSet[str] = frozenset(),
) -> set[str]:
    """Load `weights` into `module`, converted to its dtypes; returns the names of the tensors that keep new weights.

    Names and shapes must agree, but tensors in `may_lack` may be absent: these keep their new weights. With
    `new_head`, the shape of a tensor may differ in its number of outputs, such as in the last layer of a model for
    another number of classes: in the dimension of the outputs, whose size in `module` is `outputs`. Such a tensor
    keeps its new weights. Raises :class:`SettingError`, which lists the tensors that differ.
    """
    mine = module.state_dict()
    absent = may_lack - weights.keys()
    missing, unexpected = (
        sorted(names - other_names) for names, other_names in _both_ways(mine.keys() - absent, weights.keys())
    )
    if missing or unexpected:
        lists = [f"they lack {_few(missing)}"] if missing else []
        lists += [f"the model has no {_few(unexpected)}"] if unexpected else []
        raise SettingError(
            f"training.init_from: the weights are not of this recipe's model: {'; '.join(lists)}. Start from weights "
            "of the same model, or rename the tensors in the file."
        )
    differing = [name for name in weights if mine[name].shape != weights[name].shape]
    head = [name for name in differing if _is_head(mine[name], weights[name], outputs)]
    if len({_outputs_of(mine[name], weights[name]) for name in head}) > 1:
        head = []  # different numbers of outputs: not one head
    if differing and (not new_head or head != differing or len(head) == len(weights)):
        raise SettingError(_differing(differing, head, mine, weights))
    new = absent.union(head)
    module.load_state_dict({name: mine[name] if name in new else weights[name] for name in mine})
    return new


def freeze(module: nn.Module, parts: Iterable[str], new: set[str]) -> list[nn.Module]:
    """Exclude the parameters of `parts` from training; returns the frozen modules.

    `parts` are names of modules or parameters; `new` are the names of the tensors that start with new weights. Raises
    :class:`SettingError` for a part that does not exist or has new weights, and if no parameter is left to train.
    """
    named, parts = dict(module.named_parameters(remove_duplicate=False)), tuple(parts)
    for part in parts:
        inside = [name for name in named if _is_in(name, part)]
        if not inside:
            raise SettingError(f"training.freeze: the model has no part {part!r}; it has {_few(named)}")
        if again := sorted(new & set(inside)):
            raise SettingError(
                f"training.freeze: {_few(again)} start with new weights, so they must be trained"
            )
        for name in inside:
            named[name].requires_grad_(False)
    if parts and not any(parameter.requires_grad for parameter in named.values()):
        raise SettingError(f"training.freeze: {', '.join(parts)} leave no parameter to train")
    return [
        submodule for name, submodule in module.named_modules() if any(_is_in(name, part) for part in parts)
    ]


def set_training(module: nn.Module, frozen: Iterable[nn.Module]) -> None:
    """Set a model to training mode, and its frozen modules to evaluation mode.

    In evaluation mode, the running statistics of batch normalisation do not change, and dropout is off.
    """
    module.train()
    for submodule in frozen:
        submodule.eval()


def _digests(module: nn.Module, parts: tuple[str, ...]) -> dict[str, str]:
    """The digest of each tensor in `parts`, by its name."""
    return {
        name: weights_digest({name: tensor})
        for name, tensor in module.state_dict().items()
        if any(_is_in(name, part) for part in parts)
    }


def _is_in(name: str, part: str) -> bool:
    """Whether a parameter or module is `part` or lies inside it: `layer1` does not contain `layer10`."""
    return name == part or name.startswith(f"{part}.")


def _is_head(here: "torch.Tensor", there: "torch.Tensor", outputs: int) -> bool:
    """Whether two tensors differ in the output dimension alone, whose size in `here` is `outputs`.

    This is the first dimension, or the second of a matrix, as in Keras.
    """
    if here.dim() != there.dim():
        return False
    differing = [axis for axis in range(here.dim()) if here.shape[axis] != there.shape[axis]]
    return (differing == [0] or (differing == [1] and here.dim() == 2)) and here.shape[
        differing[0]
    ] == outputs


def _outputs_of(here: "torch.Tensor", there: "torch.Tensor") -> int:
    """The size that `there` has in the one dimension in which the two tensors differ."""
    return next(size for size, own in zip(there.shape, here.shape, strict=True) if size != own)


def _both_ways(names: Iterable[str], other_names: Iterable[str]) -> tuple[tuple[set[str], set[str]], ...]:
    first, second = set(names), set(other_names)
    return (first, second), (second, first)


def _differing(differing: list[str], head: list[str], here: "Weights", there: "Weights") -> str:
    """The error message for tensors of other shapes; if only the head differs, with the setting that helps."""
    listed = [
        f"{name} {tuple(there[name].shape)} there, {tuple(here[name].shape)} here" for name in differing
    ]
    text = f"training.init_from: tensors have other shapes: {_few(listed)}."
    if head == differing and len(head) < len(here):
        return (
            f"{text} The weights were made for another number of classes: training.init_head=new starts these with "
            "new weights."
        )
    return f"{text} Start from weights of the same model."


def _few(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return ", ".join(listed[:_LISTED]) + more
