"""What an operator does to metadata: asked of FakeTensor once for each kind of call, then remembered."""

from __future__ import annotations

from typing import Any

import torch

from roost.tensor._meta import Meta, meta_of
from roost.tensor._numbers import fresh_template
from roost.tensor._tensor import Tensor, refusal
from roost.tensor._worker import Gap, Given, tensors_in

__all__ = ["Entry", "propagate"]


class New:
    """In the shape of a result: a new value, by its place among them."""

    __slots__ = ("index", "meta")

    def __init__(self, index: int, meta: Meta) -> None:
        self.index, self.meta = index, meta


class Same:
    """In the shape of a result: one of the inputs."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class Entry:
    """What is remembered of one kind of call.

    Attributes:
        template: the number under which the workers know operator and constant arguments; 0 for a call that
            is answered by its metadata alone.
        definition: what the template is made from.
        metas: the metadata of each new value.
        single: the result is exactly one new value.
        shape: the result, with `New` and `Same` in the places of tensors.
        writes: which inputs are changed.
        changed: which inputs have other metadata afterwards, and which.
        repeatable: the same inputs always give the same result.
        views: the new values share memory with the first input.
    """

    __slots__ = (
        "changed",
        "definition",
        "metas",
        "repeatable",
        "shape",
        "single",
        "template",
        "views",
        "writes",
    )

    def __init__(self) -> None:
        self.template = 0
        self.definition: Any = None
        self.metas: tuple[Meta, ...] = ()
        self.single = False
        self.shape: Any = None
        self.writes: tuple[int, ...] = ()
        self.changed: tuple[tuple[int, Meta], ...] = ()
        self.repeatable = False
        self.views = False


_mode: Any = None


def fake_mode() -> Any:
    """The one mode under which all fakes are made."""
    global _mode
    if _mode is None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        _mode = FakeTensorMode(allow_non_fake_inputs=True)
    return _mode


def propagate(func: Any, args: Any, kwargs: Any, free: frozenset[type]) -> Entry:
    """Finds out what a call does to metadata.

    Args:
        func: the operator.
        args: positional arguments.
        kwargs: named arguments.
        free: the types of numbers that leave the metadata alone, which become gaps of the template.

    Raises:
        NotOnControllerError: the shape of the result depends on values.
    """
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    fakes: list[Any] = []
    given = 0

    def split(value: Any) -> tuple[Any, Any]:
        """The value with fakes in it, and its template."""
        nonlocal given
        kind = type(value)
        if kind is Tensor:
            fakes.append(value._meta.fake())
            return fakes[-1], Gap(len(fakes) - 1)
        if kind in free:
            given += 1
            return value, Given(given - 1)
        if isinstance(value, list | tuple):
            pairs = [split(item) for item in value]
            into = tuple if isinstance(value, tuple) else list
            return into(pair[0] for pair in pairs), into(pair[1] for pair in pairs)
        return value, value

    with fake_mode():
        pairs = [split(arg) for arg in args]
        named = {name: split(value) for name, value in kwargs.items()}
        before = [meta_of(fake) for fake in fakes]
        try:
            result = func(*(pair[0] for pair in pairs), **{name: pair[0] for name, pair in named.items()})
        except (DataDependentOutputException, DynamicOutputShapeException):
            raise refusal(f"{func.name()}, whose result depends on values,") from None
    entry = Entry()
    entry.shape = _shape(result, fakes, entry)
    entry.writes = tuple(_written(func, args, kwargs))
    after = [meta_of(fake) for fake in fakes]
    entry.changed = tuple((index, meta) for index, meta in enumerate(after) if meta is not before[index])
    entry.single = type(entry.shape) is New
    flat = tensors_in(result)
    fresh = tuple(i for i, one in enumerate(flat) if not any(one is fake for fake in fakes))
    if flat or entry.writes:
        entry.template = fresh_template()
        entry.definition = (
            func.name(),
            tuple(pair[1] for pair in pairs),
            {name: pair[1] for name, pair in named.items()},
            entry.writes,
            None if len(fresh) == len(flat) else fresh,
        )
    entry.repeatable = torch.Tag.nondeterministic_seeded not in func.tags
    entry.views = func.is_view
    return entry


def _shape(result: Any, fakes: list[Any], entry: Entry) -> Any:
    if isinstance(result, torch.Tensor):
        for index, fake in enumerate(fakes):
            if result is fake:
                return Same(index)
        entry.metas = (*entry.metas, meta_of(result))
        return New(len(entry.metas) - 1, entry.metas[-1])
    if isinstance(result, list | tuple):
        return type(result)(_shape(item, fakes, entry) for item in result)
    if isinstance(result, torch.SymInt | torch.SymFloat | torch.SymBool):
        raise refusal("an operator whose result is a number")
    return result


def _written(func: Any, args: Any, kwargs: Any) -> list[int]:
    """Which tensors, counted in order, the operator changes, by its schema."""
    written, count = [], 0
    named = {argument.name: argument for argument in func._schema.arguments}
    pairs = [*zip(func._schema.arguments, args, strict=False)]
    pairs += [(named[name], value) for name, value in kwargs.items()]
    for argument, value in pairs:
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if type(tensor) is Tensor:
                if argument.alias_info is not None and argument.alias_info.is_write:
                    written.append(count)
                count += 1
    return written
