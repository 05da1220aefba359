"""The controller's tensor: metadata and the number of a value that lives on each process of a mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from roost.actor import ProcMesh
    from roost.tensor._feed import Place, Ref
    from roost.tensor._meta import Known, Meta

__all__ = ["Tensor", "make"]


class Tensor(torch.Tensor):  # type: ignore[misc, unused-ignore]
    """A tensor with one shard on each process of a mesh. torch operators on it run there.

    Its shape, type and strides are those of a shard, and known at once; its values are not: read them with
    `fetch_shard`, `fetch_all` or `inspect`. Gradients work as for any tensor.
    """

    _meta: Meta
    _ref: Ref
    _place: Place
    _known: Known | None

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {}, None)

    @property
    def mesh(self) -> ProcMesh:
        """The mesh that holds the shards."""
        return self._place.mesh

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        grad = ", requires_grad=True" if self.requires_grad else ""
        where = ", ".join(f"{dim}={size}" for dim, size in self.mesh.sizes.items())
        kind = str(self.dtype).removeprefix("torch.")
        return (
            f"<roost.Tensor {list(self.shape)} {kind} distributed on {self.mesh.name}({where}){grad}; "
            "fetch_shard(t).get() gives the values of one rank>"
        )

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def tolist(self) -> Any:
        """Refuses: the values are on the workers."""
        if self._known is None:
            raise refusal("tolist()")
        return super().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Refuses: the values are on the workers."""
        raise refusal("numpy()")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a distributed tensor cannot be pickled: its values are on the workers. Send what "
            "fetch_shard gives."
        )


def refusal(what: str) -> Exception:
    """The error for asking the controller for what only the workers have."""
    from roost.errors import NotOnControllerError

    return NotOnControllerError(
        f"{what} needs the values of a distributed tensor, which are on the workers: use "
        "fetch_shard(tensor).get(), or inspect(tensor), and go on with what that gives"
    )


_make_wrapper = torch.Tensor._make_wrapper_subclass


def make(meta: Meta, ref: Ref, place: Place, known: Known | None = None) -> Tensor:
    """A tensor for a value of the workers."""
    tensor: Tensor = _make_wrapper(
        Tensor,
        meta.size,
        strides=meta.stride,
        storage_offset=meta.offset,
        dtype=meta.dtype,
        device=meta.device,
    )
    fields = tensor.__dict__
    fields["_meta"] = meta
    fields["_ref"] = ref
    fields["_place"] = place
    fields["_known"] = known
    if meta.bits:
        torch._C._set_neg(tensor, bool(meta.bits & 1))
        torch._C._set_conj(tensor, bool(meta.bits & 2))
    return tensor


def _dispatch(func: Any, args: Any, kwargs: Any, place: Place | None) -> Any:
    from roost.tensor._dispatch import dispatch

    global _dispatch
    _dispatch = dispatch  # it imports this module, so it is found at the first operator
    return dispatch(func, args, kwargs, place)
