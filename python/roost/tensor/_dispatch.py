"""One torch operator on distributed tensors: recognised, looked up, sent, and its result described.

The path of an operator that was seen before is this module alone: a key from the operator, the interned
metadata of its tensors and its constants finds the `Entry`, a command goes into the feed, and wrappers for
the results are made. Nothing waits, and nothing is computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from roost.errors import MixedTensorsError
from roost.tensor._feed import Ref, fresh_numbers
from roost.tensor._meta import Known, Meta, meta_of
from roost.tensor._numbers import fresh_template
from roost.tensor._propagate import Entry, New, Same, propagate
from roost.tensor._sites import current_site, text_of
from roost.tensor._tensor import Tensor, make, refusal

if TYPE_CHECKING:
    from roost.tensor._feed import Place

__all__ = ["command", "dispatch", "receive"]

_aten = torch.ops.aten
_cache: dict[tuple[Any, ...], Entry] = {}
_frees: dict[Any, frozenset[type]] = {}

_NUMBERS = frozenset({int, float, complex})
_FRACTIONS = frozenset({float, complex})
_NONE: frozenset[type] = frozenset()
_FILLS = {_aten.full.default, _aten.full_like.default, _aten.scalar_tensor.default}


def _free(func: Any) -> frozenset[type]:
    """The types of numbers whose values cannot change what the operator does to metadata."""
    found = _frees.get(func)
    if found is None:
        if torch.Tag.pointwise in func.tags or (func in _FILLS and func is not _aten.full.default):
            found = _NUMBERS
        elif func is _aten.full.default or any(
            argument.alias_info is not None and argument.alias_info.is_write
            for argument in func._schema.arguments
        ):
            found = _FRACTIONS
        else:
            found = _NONE
        _frees[func] = found
    return found


class _Call:
    """The parts of a call while it is looked at."""

    __slots__ = ("free", "given", "key", "local", "tensors")

    def __init__(self, func: Any, free: frozenset[type]) -> None:
        self.key: list[Any] = [func]
        self.tensors: list[Tensor] = []
        self.given: list[Any] = []
        self.local: list[torch.Tensor] = []
        self.free = free

    def scan(self, values: Any) -> None:
        key = self.key
        for value in values:
            kind = type(value)
            if kind is Tensor:
                key.append(value._meta)
                self.tensors.append(value)
            elif kind is list or kind is tuple or kind is torch.Size:
                key.append(len(value))
                key.append(list)
                self.scan(value)
            elif kind in self.free:
                key.append(kind)
                self.given.append(value)
            elif kind is int or kind is float or kind is bool or kind is complex:
                key.append(kind)  # 1, 1.0 and True are equal
                # Zeros of either sign are equal too, and nan is not even equal to itself.
                key.append(value if kind is not float else value.hex())
            elif isinstance(value, torch.Tensor):
                self.local.append(value)
            elif isinstance(value, torch.Generator):
                raise TypeError(
                    "a torch.Generator belongs to one process; distributed random numbers come from each "
                    "rank's own, which roost.tensor.manual_seed seeds"
                )
            else:
                key.append(value)


def dispatch(func: Any, args: Any, kwargs: Any, place: Place | None) -> Any:
    """Runs an operator on a mesh.

    Args:
        func: the operator.
        args: positional arguments.
        kwargs: named arguments.
        place: the mesh for an operator without tensors; None where no mesh is active.

    Raises:
        MixedTensorsError: tensors of several meshes, or of a mesh and of this process.
        TypeError: a generator of this process.
        NotOnControllerError: the operator needs values.
    """
    if func in _OF_THIS_PROCESS:
        return func(*args, **kwargs)
    special = _SPECIAL.get(func)
    if special is not None and args and type(args[0]) is Tensor:
        return special(*args, **kwargs)
    call = _Call(func, _free(func))
    call.scan(args)
    if kwargs:
        for name in kwargs:
            call.key.append(name)
        call.scan(kwargs.values())
    tensors = call.tensors
    if call.local:
        return _with_local(func, args, kwargs, place, call)
    if tensors:
        place = tensors[0]._place
        for tensor in tensors:
            if tensor._place is not place:
                raise _wrong_mesh(func, tensors)
    elif place is None:
        return func(*args, **kwargs)
    key = tuple(call.key)
    entry = _cache.get(key)
    if entry is None:
        entry = _cache[key] = propagate(func, args, kwargs, call.free)
    if entry.changed:
        for index, _ in entry.changed:
            _own(tensors[index])
    refs: tuple[Ref, ...] = ()
    if entry.template:
        dead = place.dead
        refs = tuple(Ref(next(fresh_numbers), dead) for _ in entry.metas)
        command(place, entry, tensors, tuple(call.given), refs)
    if entry.single:
        known = None
        if not tensors or tensors[0]._known is not None:
            known = _known(func, args, kwargs, entry, tensors)
        return make(entry.metas[0], refs[0], place, known)
    return _result(func, args, kwargs, entry, tensors, refs, place)


def command(
    place: Place, entry: Entry, tensors: list[Tensor], given: tuple[Any, ...], refs: tuple[Ref, ...]
) -> None:
    """Sends one command of an entry."""
    site = current_site()
    known = place._known
    if entry.template not in known:
        place.define(entry.template, entry.definition)
    if site not in known:
        place.define(site, text_of(site))
    place.append(
        (
            entry.template,
            tuple([tensor._ref.number for tensor in tensors]),
            given,
            tuple([ref.number for ref in refs]),
            site,
        )
    )


def _result(
    func: Any,
    args: Any,
    kwargs: Any,
    entry: Entry,
    tensors: list[Tensor],
    refs: tuple[Ref, ...],
    place: Place,
) -> Any:
    """The results of a call that changes inputs or has other results than one tensor."""
    if entry.writes:
        _follow(func, args, kwargs, entry, tensors)
    for index, meta in entry.changed:
        _change(tensors[index], meta)

    def build(shape: Any) -> Any:
        kind = type(shape)
        if kind is New:
            return make(shape.meta, refs[shape.index], place)
        if kind is Same:
            return tensors[shape.index]
        if kind is list or kind is tuple:
            return kind([build(item) for item in shape])
        return shape

    return build(entry.shape)


def _change(tensor: Tensor, meta: Meta) -> None:
    """An operator such as ``t_`` has given the tensor other metadata."""
    with torch._C._DisableTorchDispatch():
        storage = tensor.untyped_storage()
        needed = meta.offset + sum((s - 1) * d for s, d in zip(meta.size, meta.stride, strict=True)) + 1
        if storage.nbytes() < needed * meta.dtype.itemsize:
            storage.resize_(needed * meta.dtype.itemsize)
        _aten.as_strided_.default(tensor, meta.size, meta.stride, meta.offset)
    tensor._meta = meta


def _own(tensor: Tensor) -> None:
    """Before its metadata change: the tensor gets a value of its own, if others use the same one."""
    if tensor._ref.shared:
        ref = tensor._place.ref()
        command(tensor._place, ALIAS, [tensor], (), (ref,))
        tensor._ref = ref


# -- numbers that the controller knows --------------------------------------------------------------------


def _local(value: Any) -> Any:
    if type(value) is Tensor:
        return value._known.value  # type: ignore[union-attr]
    if isinstance(value, list | tuple):
        return type(value)(_local(item) for item in value)
    return value


def _is_known(tensor: Tensor) -> bool:
    return tensor._known is not None and tensor._known.cell[0]


def _known(func: Any, args: Any, kwargs: Any, entry: Entry, tensors: list[Tensor]) -> Known | None:
    """The value of a new number, where it follows from values that are known."""
    if not (entry.repeatable and entry.metas[0].is_scalar and all(map(_is_known, tensors))):
        return None
    if not tensors and "empty" in func.name():
        return None
    value = func(*_local(args), **{name: _local(arg) for name, arg in kwargs.items()})
    cell = tensors[0]._known.cell if entry.views and tensors else None  # type: ignore[union-attr]
    return Known(value, cell)


def _follow(func: Any, args: Any, kwargs: Any, entry: Entry, tensors: list[Tensor]) -> None:
    """Keeps known numbers in step with an operator that changes some of them."""
    if not any(tensors[index]._known is not None for index in entry.writes):
        return
    if entry.repeatable and not entry.changed and all(map(_is_known, tensors)):
        func(*_local(args), **{name: _local(arg) for name, arg in kwargs.items()})
        return
    for index in entry.writes:
        known = tensors[index]._known
        if known is not None:
            known.cell[0] = False


# -- values of this process -------------------------------------------------------------------------------


def receive(value: torch.Tensor, place: Place) -> Tensor:
    """A copy of a tensor of this process on each rank of a mesh."""
    meta = meta_of(value.detach())
    ref = place.ref()
    with place.engine.lock:
        if place.engine.current is not place:
            place.engine.switch(place)
        index = place.send_value(value.detach())
        command(place, RECEIVE, [], (index,), (ref,))
    place.flush()
    known = Known(value.detach().clone()) if meta.is_scalar else None
    return make(meta, ref, place, known)


def _with_local(func: Any, args: Any, kwargs: Any, place: Place | None, call: _Call) -> Any:
    if not call.tensors:
        if func is _aten.lift_fresh.default and place is not None and type(args[0]) is torch.Tensor:
            return receive(args[0], place)
        return func(*args, **kwargs)
    where = call.tensors[0]._place
    copied = func in (_aten.copy_.default, _aten._foreach_copy_.default)
    for local in call.local:
        if not (copied or (local.dim() == 0 and local.device.type == "cpu")) or local is args[0]:
            raise MixedTensorsError(
                f"{func.name()} got distributed tensors of {where.mesh!r} and a local tensor of shape "
                f"{list(local.shape)}: put the local one on the mesh with torch.tensor(...) or "
                "to_mesh(tensor, mesh), or fetch the others"
            )

    def put(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(put(item) for item in value)
        if isinstance(value, torch.Tensor) and type(value) is not Tensor:
            return receive(value, where)
        return value

    return dispatch(func, put(args), {name: put(value) for name, value in kwargs.items()}, place)


def _wrong_mesh(func: Any, tensors: list[Tensor]) -> MixedTensorsError:
    meshes = ", ".join(repr(tensor._place.mesh) for tensor in tensors)
    return MixedTensorsError(
        f"{func.name()} got tensors of different meshes ({meshes}): bring them to one "
        "with to_mesh or slice_mesh"
    )


# -- operators with a meaning of their own ----------------------------------------------------------------


def _special(name: str, writes: tuple[int, ...] = ()) -> Entry:
    entry = Entry()
    entry.template = fresh_template()
    entry.definition = ("", name, writes)
    return entry


ALIAS = _special("alias")
RECEIVE = _special("receive")
COORDINATE = _special("coordinate")
SEED = _special("seed")


def _detach(tensor: Tensor) -> Tensor:
    """The same value without history: for the workers, who keep none, nothing happens."""
    tensor._ref.shared = True
    return make(tensor._meta, tensor._ref, tensor._place, tensor._known)


def _item(tensor: Tensor) -> Any:
    if _is_known(tensor):
        return tensor._known.value.item()  # type: ignore[union-attr]
    raise refusal("item(), bool() or a condition")


_OF_THIS_PROCESS = frozenset(
    {
        torch.ops.profiler._record_function_enter_new.default,
        torch.ops.profiler._record_function_exit._RecordFunction,
    }
)
_SPECIAL = {
    _aten.detach.default: _detach,
    _aten.alias.default: _detach,
    _aten._local_scalar_dense.default: _item,
}
