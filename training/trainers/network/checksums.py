"""Checksums of tensors over all their bits, computed on the device."""

from collections.abc import Mapping, Sequence

import torch  # noqa: TID253 - imported by processes that train

Sums = tuple[tuple[str, ...], torch.Tensor]  # names of tensors, and a checksum for each


def checksums(named: Mapping[str, torch.Tensor], device: torch.device) -> Sums:
    """A checksum of each tensor, on `device`."""
    sums = [words(tensor).sum(dtype=torch.int64).to(device) for tensor in named.values()]
    return tuple(named), torch.stack(sums)


def checksum(tensors: Sequence[torch.Tensor]) -> int:
    """A checksum of all tensors together, of at least 0 and below 2**63."""
    sums = [words(tensor).sum(dtype=torch.int64).to(tensors[0].device) for tensor in tensors]
    return int(torch.stack(sums).sum()) & (2**63 - 1)


def differing(first: Sums, second: Sums) -> list[str]:
    """Names of the tensors with different checksums, and of those that only one side has."""
    mine, others = (dict(zip(names, sums.tolist(), strict=True)) for names, sums in (first, second))
    return [name for name in mine | others if mine.get(name) != others.get(name)]


def words(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor as integers: so -0.0 and 0.0 compare as different, and NaNs with equal bits as equal."""
    flat = tensor.detach().contiguous().flatten()
    flat = torch.view_as_real(flat).flatten() if flat.is_complex() else flat
    return flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
