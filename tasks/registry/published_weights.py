"""In: a name in `training.init_from`. Out: a safetensors file in the home with the published weights of that name.

Weights are downloaded once for each home. A later run with the same name uses the same bytes, also without a network,
and also if the hub has other weights under that name by then.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfile

from training.errors import EvergreenError, ResourceError, SettingError, TransientError, classify
from training.initial_weights import Published
from training.seams import install_command
from training.storage.files import atomic_folder, digest_file, temporary_folder
from training.storage.paths import Home

log = logging.getLogger("evergreen.initial_weights")

_FILE = "model.safetensors"
_TRY_AGAIN = frozenset({408, 429, 500, 502, 503, 504})  # HTTP statuses


def published_weights(home: Home, reference: str, published: Published) -> Path:
    """The path of the weights in the home; downloads them if they are not there yet.

    Raises :class:`SettingError` for an unknown name, and :class:`TransientError` if the site can't be reached.
    """
    folder = home.root / "cache" / "weights" / reference.replace("/", "--").replace(":", "-")
    if not (folder / _FILE).is_file():
        log.info("%s: downloading the weights", reference)
        with atomic_folder(folder) as aside, _explained(reference):
            if published.weights:
                _from_torchvision(published.weights, aside / _FILE)
            else:
                _from_hub(published, aside / _FILE)
    return folder / _FILE


@contextmanager
def _explained(reference: str) -> Iterator[None]:
    """Within the block, raise the errors of the libraries, which are of many types, as an :class:`EvergreenError`.

    A :class:`TransientError` for a site that can't be reached or is busy, else a :class:`SettingError`, as for a name
    that does not exist.
    """
    try:
        yield
    except EvergreenError:
        raise
    except Exception as error:
        known = classify(error)
        if isinstance(known, ResourceError):
            raise known from error
        status = getattr(getattr(error, "response", None), "status_code", 0)
        # An error of the hub's library, also without a network.
        away = type(error).__name__ == "LocalEntryNotFoundError"
        passing = isinstance(known, TransientError) or away or status in _TRY_AGAIN
        reason = str(error).strip().partition("\n")[0]
        raise (TransientError if passing else SettingError)(
            f"training.init_from: {reference} can't be downloaded ({type(error).__name__}: {reason}). Check the name "
            "and the network; or save the weights elsewhere as safetensors, and give the file's path."
        ) from error


def _from_hub(published: Published, target: Path) -> None:
    """Download the repository's `model.safetensors`. The repository's other files, such as pickles, are not read."""
    try:
        from huggingface_hub import hf_hub_download
    except ModuleNotFoundError as error:
        raise SettingError(
            "training.init_from: the hub's library is not installed; install it by "
            f"`{install_command('transformers')}`"
        ) from error
    # Otherwise each retry writes two lines to the terminal.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    with temporary_folder("weights") as cache:
        file = hf_hub_download(
            published.repository, _FILE, revision=published.revision or None, cache_dir=cache
        )
        copyfile(file, target)


def _from_torchvision(name: str, target: Path) -> None:
    """Save a state dict of TorchVision as safetensors; its file is taken from torch's cache if that has it.

    The file is read with `weights_only=True`, and its hash is compared with that in its name. A file in the cache with
    another hash is not used.
    """
    import torch
    from safetensors.torch import save_file
    from torchvision.models import get_weight

    try:
        weights = get_weight(name)
    except (ValueError, AttributeError, KeyError) as error:
        raise SettingError(
            f"training.init_from: TorchVision has no weights {name!r}; its documentation lists names such as "
            "ResNet18_Weights.IMAGENET1K_V1"
        ) from error
    with temporary_folder("weights") as aside:
        cache = Path(torch.hub.get_dir()) / "checkpoints"
        cached = cache / Path(weights.url).name
        wanted = cached.stem.rpartition("-")[2]
        known = cached.is_file() and digest_file(cached).startswith(wanted)
        state = weights.get_state_dict(
            model_dir=str(cache if known else aside),
            map_location="cpu",
            progress=False,
            check_hash=True,
            weights_only=True,
        )
        save_file({key: value.clone().contiguous() for key, value in state.items()}, target)
