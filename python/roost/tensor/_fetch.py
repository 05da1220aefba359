"""From the workers to the controller: the values of distributed tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from roost.actor import Future
from roost.actor._calls import CallSource, MeshCallSource
from roost.tensor._active import no_mesh
from roost.tensor._tensor import Tensor
from roost.tensor._worker import Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.actor import ValueMesh
    from roost.tensor._feed import Place

__all__ = ["fetch_all", "fetch_shard", "inspect", "show"]


class _One(CallSource):
    """The answer of one rank, unpickled where no mesh is active: its tensors are local ones."""

    __slots__ = ("_unflatten",)
    _unflatten: Callable[[Any], Any]

    def result(self) -> Any:
        with no_mesh.activate():
            return self._unflatten(super().result())


class _All(MeshCallSource):
    """The answers of all ranks, at once: those that come later would meet another mesh."""

    __slots__ = ("_unflatten",)
    _unflatten: Callable[[Any], Any]

    def result(self) -> Any:
        from roost.actor import ValueMesh

        with no_mesh.activate():
            found = super().result()
            return ValueMesh(found.extent, [self._unflatten(value) for value in found.values()])


def _leaves(obj: Any) -> tuple[Place, list[Any], Any]:
    """The place of the tensors in an object, its leaves as the worker looks them up, and its structure."""
    leaves, structure = pytree.tree_flatten(obj)
    place: Place | None = None
    wanted: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            if place is not None and leaf._place is not place:
                raise TypeError(
                    f"the tensors to fetch are on different meshes, {place.mesh!r} and {leaf.mesh!r}"
                )
            place = leaf._place
            wanted.append(Value(leaf._ref.number))
        else:
            wanted.append(leaf)
    if place is None:
        raise TypeError(f"there is no distributed tensor in what is to be fetched: {type(obj).__qualname__}")
    return place, wanted, structure


def _rank(place: Place, shard: Any, coords: dict[str, int]) -> int:
    """The rank within the mesh of a shard that is given as an index, a mapping or by keyword."""
    sizes = place.mesh.sizes
    if isinstance(shard, int) and not coords:
        if not 0 <= shard < len(place.mesh):
            raise IndexError(f"there is no rank {shard} in {place.mesh!r}")
        return shard
    chosen = {**dict(shard or {}), **coords}
    picked = place.mesh.slice(**{dim: chosen.get(dim, 0) for dim in {**sizes, **chosen}})
    base = picked._region.ranks()[0]
    return place.mesh._region.ranks().index(base)


def fetch_shard(obj: Any, shard: Any = None, **coords: int) -> Future[Any]:
    """The values of one rank.

    Args:
        obj: a distributed tensor, or containers of them; what is no tensor comes back as it is.
        shard: which rank, as a number or as a mapping of dimension to index.
        **coords: which rank, by dimension. Dimensions that are not named are at index 0.

    Returns:
        ``obj`` with local tensors in the places of the distributed ones.

    Raises:
        TypeError: no distributed tensor in ``obj``, or some of different meshes.
        UnknownDimensionError: the mesh has no such dimension.
        IndexError: the index is not below the size.

    The future raises what an operator that the values depend on has raised on that rank; a note on the
    exception names the line of the controller that issued it.
    """
    place, wanted, structure = _leaves(obj)
    rank = _rank(place, shard, coords)
    place.flush()
    endpoint = place.workers._endpoint("fetch")
    body, buffers = endpoint._pack((wanted,), {})
    target = place.workers._rank_target(rank)
    call = place.workers._node.call(target, endpoint._meta(), body, buffers, arg=rank + 1)
    source = _One(endpoint, call, rank)
    source._unflatten = lambda leaves: pytree.tree_unflatten(leaves, structure)
    return Future._of(source)


def fetch_all(obj: Any) -> Future[ValueMesh[Any]]:
    """The values of every rank, as a `ValueMesh`; otherwise like `fetch_shard`."""
    place, wanted, structure = _leaves(obj)
    place.flush()
    endpoint = place.workers._endpoint("fetch")
    body, buffers = endpoint._pack((wanted,), {})
    call = place.workers._node.call(place.workers._target, endpoint._meta(), body, buffers)
    source = _All(endpoint, call)
    source._unflatten = lambda leaves: pytree.tree_unflatten(leaves, structure)
    return Future._of(source)


def inspect(obj: Any, shard: Any = None, **coords: int) -> Any:
    """Waits for the values of one rank: ``fetch_shard(...).get()``."""
    return fetch_shard(obj, shard, **coords).get()


def show(obj: Any, shard: Any = None, **coords: int) -> None:
    """Prints the values of one rank."""
    found = inspect(obj, shard, **coords)
    with no_mesh.activate(), torch.no_grad():
        print(found)
