"""What the controller knows of a tensor: its metadata, interned, so that it is compared by identity."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Known", "Meta", "meta_of"]


class Meta:
    """Shape, strides, offset, type, device and bits of a tensor. Two that are equal are one object."""

    __slots__ = ("bits", "device", "dtype", "offset", "size", "stride")

    def __init__(self, described: tuple[Any, ...]) -> None:
        self.size, self.stride, self.offset, self.dtype, self.device, self.bits = described

    @property
    def is_scalar(self) -> bool:
        return len(self.size) == 0

    def fake(self) -> Any:
        """A tensor like this one, under the mode that is active."""
        last = self.offset + sum(
            (size - 1) * stride for size, stride in zip(self.size, self.stride, strict=True)
        )
        length = 0 if 0 in self.size else last + 1
        whole = torch.empty((max(length, self.offset),), dtype=self.dtype, device=self.device)
        made = whole.as_strided(self.size, self.stride, self.offset)
        if self.bits & 1:
            made = torch._neg_view(made)
        if self.bits & 2:
            made = torch._conj(made)
        return made


_interned: dict[tuple[Any, ...], Meta] = {}


def meta_of(tensor: torch.Tensor) -> Meta:
    """The metadata of a tensor of torch, fake or real.

    Raises:
        TypeError: a layout other than strided.
    """
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"a distributed tensor is strided; this operator makes one with layout {tensor.layout}"
        )
    described = (
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.storage_offset(),
        tensor.dtype,
        tensor.device,
        tensor.is_neg() | tensor.is_conj() << 1,
    )
    found = _interned.get(described)
    if found is None:
        found = _interned[described] = Meta(described)
    return found


class Known:
    """The value of a number that the controller knows although it lives on the mesh.

    Counters of optimisers are such: made from a Python number, changed by Python numbers, the same on every
    rank. Reading one back needs no worker. Views share `cell`, so that a change that the controller cannot
    follow makes all of them unknown.
    """

    __slots__ = ("cell", "value")

    def __init__(self, value: torch.Tensor, cell: list[bool] | None = None) -> None:
        self.value = value
        self.cell = [True] if cell is None else cell
