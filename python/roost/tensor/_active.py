"""Which mesh the operators of a thread run on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from roost.actor import get_active_proc_meshes
from roost.tensor._dispatch import COORDINATE, SEED, command, dispatch
from roost.tensor._feed import Engine, Place
from roost.tensor._meta import meta_of
from roost.tensor._tensor import make
from roost.tensor._worker import TensorWorker

if TYPE_CHECKING:
    from roost.actor import ProcMesh
    from roost.tensor._tensor import Tensor

__all__ = ["activate", "get_active_mesh", "manual_seed", "no_mesh", "place_of", "rank_tensors"]


class _Thread(threading.local):
    place: Place | None = None


_thread = _Thread()
_engines: dict[int, Engine] = {}
_engines_lock = threading.Lock()


class _Mode(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Sends the operators of a thread to its active mesh; with none, they run as ever."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True wraps the method below, which costs microseconds a call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {}, _thread.place)


def place_of(mesh: ProcMesh) -> Place:
    """The place of a mesh. The workers are started with the first mesh of the same processes."""
    engine = _engines.get(mesh._uid)
    if engine is None:
        with _engines_lock:
            engine = _engines.get(mesh._uid)
            if engine is None:
                whole = next((one for one in get_active_proc_meshes() if one._uid == mesh._uid), mesh)
                workers: Any = whole.spawn("tensors", TensorWorker)
                engine = _engines[mesh._uid] = Engine(workers)
    return engine.place(mesh)


@contextlib.contextmanager
def _active(place: Place | None) -> Iterator[None]:
    before, _thread.place = _thread.place, place
    try:
        with _Mode():
            yield
    finally:
        _thread.place = before


@contextlib.contextmanager
def activate(mesh: ProcMesh) -> Iterator[ProcMesh]:
    """While this is open, torch operators of this thread run on ``mesh``; see `ProcMesh.activate`."""
    with _active(place_of(mesh)):
        yield mesh


def get_active_mesh() -> ProcMesh:
    """The mesh that the operators of this thread run on.

    Raises:
        ValueError: none is active.
    """
    return active_place().mesh


def active_place() -> Place:
    """The place of the active mesh.

    Raises:
        ValueError: none is active.
    """
    if _thread.place is None:
        raise ValueError("no mesh is active in this thread: use `with procs.activate():`")
    return _thread.place


class _NoMesh:
    """No mesh: operators run in this process."""

    def activate(self) -> contextlib.AbstractContextManager[None]:
        """While this is open, operators on local tensors run in this process, also inside an active mesh."""
        return _active(None)

    def __repr__(self) -> str:
        return "no_mesh"


no_mesh = _NoMesh()


def manual_seed(seed: int, *, mesh: ProcMesh | None = None, differ: bool = True) -> None:
    """Seeds the random numbers of the ranks of a mesh, behind the operators issued so far.

    Args:
        seed: for the rank with number 0.
        mesh: which mesh; the active one by default.
        differ: each rank adds its number to the seed; without, all ranks draw the same numbers.
    """
    place = active_place() if mesh is None else place_of(mesh)
    command(place, SEED, [], (seed, differ), ())


def rank_tensors(mesh: ProcMesh) -> dict[str, Tensor]:
    """For each dimension a tensor that holds, on each rank, the rank's index along it."""
    place = place_of(mesh)
    with no_mesh.activate():
        meta = meta_of(torch.tensor(0))
    made = {}
    for number, dim in enumerate(mesh.sizes):
        ref = place.ref()
        given = (tuple(mesh._region.ranks()), tuple(mesh.sizes.values()), number)
        command(place, COORDINATE, [], given, (ref,))
        made[dim] = make(meta, ref, place)
    return made
