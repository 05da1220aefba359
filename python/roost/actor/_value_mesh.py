"""`ValueMesh`: one value for each rank of a mesh, as a `call` brings them back."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import index
from reprlib import repr as bounded_repr
from typing import Any, Generic, Protocol, Self, TypeVar, cast

from roost._shape import Extent, MeshTrait, Point, Region

R = TypeVar("R")

_SHOWN = 8
"""How many values a repr prints."""

_POOLED = frozenset({type(None), bool, int, str, bytes})
"""Types whose equal values cannot be told apart, so that one of them may stand for all."""


class Loadable(Protocol):
    """A value that is still in the form in which it arrived."""

    def load(self) -> Any:
        """The value. Raises what making it raises."""


class _Cell:
    """A value that is loaded when first looked at; shared by all views that show it."""

    __slots__ = ("_source", "_value")

    def __init__(self, source: Loadable) -> None:
        self._source: Loadable | None = source
        self._value: Any = None

    def read(self) -> Any:
        source = self._source
        if source is not None:
            value = source.load()
            # Two threads may load at once, which is harmless; the value comes before the source
            # goes, so that neither sees a cell without both.
            if self._source is not None:
                self._value = value
                self._source = None
        return self._value

    def __repr__(self) -> str:
        return "<not loaded>" if self._source is not None else bounded_repr(self._value)


class _Runs:
    """A sequence that stores an object once however often it comes in a row."""

    __slots__ = ("_ends", "entries")

    def __init__(self, entries: list[Any], lengths: Sequence[int]) -> None:
        self.entries = entries
        self._ends = None if len(entries) == sum(lengths) else list(accumulate(lengths))

    @classmethod
    def of(cls, objects: Iterable[Any]) -> _Runs:
        entries: list[Any] = []
        lengths: list[int] = []
        for entry in objects:
            if entries and entries[-1] is entry:
                lengths[-1] += 1
            else:
                entries.append(entry)
                lengths.append(1)
        return cls(entries, lengths)

    @property
    def lengths(self) -> list[int]:
        if self._ends is None:
            return [1] * len(self.entries)
        return [end - start for start, end in zip([0, *self._ends], self._ends, strict=False)]

    def __len__(self) -> int:
        return len(self.entries) if self._ends is None else self._ends[-1]

    def __getitem__(self, position: int) -> Any:
        if self._ends is None:
            return self.entries[position]
        return self.entries[bisect_right(self._ends, position)]

    def __iter__(self) -> Iterator[Any]:
        for entry, length in zip(self.entries, self.lengths, strict=True):
            for _ in range(length):
                yield entry


class ValueMesh(MeshTrait, Generic[R]):
    """A value for each point of an extent.

    Iteration and `items` give pairs of point and value in rank order; `mesh[point]` and
    `mesh[rank]` give one value. Slicing and reshaping give the values of the remaining ranks under
    points of the new extent. Equal plain values are stored once.

    Args:
        shape: the dimensions; of a `Region` or a mesh, those of its extent.
        values: one for each rank, in row-major order.

    Raises:
        ValueError: there are more or fewer values than ranks.

    Example:
        >>> from roost.actor import Extent, ValueMesh
        >>> losses = ValueMesh(Extent(["gpus"], [2]), [0.5, 0.25])
        >>> [(point["gpus"], loss) for point, loss in losses]
        [(0, 0.5), (1, 0.25)]
    """

    def __init__(self, shape: Extent | Region | MeshTrait, values: Iterable[R]) -> None:
        self._set(_extent_of(shape), _Runs.of(_pooled(values)))

    @classmethod
    def from_indexed(cls, shape: Extent | Region | MeshTrait, pairs: Iterable[tuple[int, R]]) -> Self:
        """A mesh of values that come with their ranks, in any order.

        Args:
            shape: the dimensions.
            pairs: rank and value, every rank once.

        Raises:
            ValueError: a rank is missing, comes twice or is out of range.
        """
        extent = _extent_of(shape)
        by_rank: dict[int, R] = {}
        for rank, value in pairs:
            if extent.point(rank).rank in by_rank:
                raise ValueError(f"rank {rank} comes twice")
            by_rank[index(rank)] = value
        missing = [rank for rank in range(extent.nelements) if rank not in by_rank]
        if missing:
            raise ValueError(f"no value for ranks {bounded_repr(missing)} of {extent}")
        return cls(extent, (by_rank[rank] for rank in range(extent.nelements)))

    @classmethod
    def _from_lazy(cls, shape: Extent | Region | MeshTrait, cells: Iterable[Loadable]) -> Self:
        """A mesh whose values are loaded when first looked at; one load for a repeated object."""
        wrapped: dict[int, _Cell] = {}
        # The cells stay alive through the wrappers, so that their ids are theirs alone.
        entries = (wrapped.setdefault(id(cell), _Cell(cell)) for cell in cells)
        return cls._made(_extent_of(shape), _Runs.of(entries))

    @classmethod
    def _made(cls, extent: Extent, runs: _Runs) -> Self:
        mesh = cls.__new__(cls)
        mesh._set(extent, runs)
        return mesh

    def _set(self, extent: Extent, runs: _Runs) -> None:
        if len(runs) != extent.nelements:
            raise ValueError(f"{extent} has {extent.nelements} ranks, got {len(runs)} values")
        self._extent = extent
        self._runs = runs

    @property
    def extent(self) -> Extent:
        """The dimensions and their sizes, outermost first."""
        return self._extent

    @property
    def _region(self) -> Region:  # type: ignore[override]
        return self._extent.region

    def _with_region(self, region: Region) -> Self:
        # Views keep ranks in order, so that one with all of them has them as they are here.
        whole = len(region) == len(self)
        runs = self._runs if whole else _Runs.of(self._runs[rank] for rank in region.ndslice)
        return self._made(region.extent, runs)

    def values(self) -> list[R]:
        """The values in rank order."""
        return [_read(entry) for entry in self._runs]

    def items(self) -> Iterator[tuple[Point, R]]:
        """Each point with its value, in rank order."""
        point = self._extent.point
        return ((point(rank), _read(entry)) for rank, entry in enumerate(self._runs))

    def __iter__(self) -> Iterator[tuple[Point, R]]:
        return self.items()

    def item(self, /, **coordinates: int) -> R:
        """The value at an index along every dimension.

        Raises:
            KeyError: a dimension is missing, or is not one of this mesh.
            IndexError: an index is out of range.
        """
        return self._at(self._extent.rank(**coordinates))

    def get(self, rank: int) -> R:
        """The value of a row-major rank.

        Raises:
            ValueError: there is no such rank.
        """
        return self._at(self._extent.point(rank).rank)

    def __getitem__(self, key: Point | int) -> R:
        """The value of a point of this mesh's extent, or of a row-major rank.

        Raises:
            KeyError: the point is one of another extent.
            IndexError: there is no such rank.
        """
        if isinstance(key, Point):
            if key.extent != self._extent:
                raise KeyError(f"{key} is a point of {key.extent}, this mesh is {self._extent}")
            return self._at(key.rank)
        rank = index(key)
        if not 0 <= rank < len(self):
            raise IndexError(f"rank {rank} is out of range: {self._extent} has {len(self)} ranks")
        return self._at(rank)

    def _at(self, rank: int) -> R:
        return cast("R", _read(self._runs[rank]))

    def __len__(self) -> int:
        return self._extent.nelements

    def __repr__(self) -> str:
        shown = [
            repr(entry) if isinstance(entry, _Cell) else bounded_repr(entry)
            for entry in map(self._runs.__getitem__, range(min(len(self), _SHOWN)))
        ]
        more = ["..."] if len(self) > _SHOWN else []
        return f"ValueMesh({self._extent}, [{', '.join(shown + more)}])"

    def __reduce__(self) -> tuple[Any, ...]:
        values = [_read(entry) for entry in self._runs.entries]
        distinct = len(values) == len(self)
        lengths = None if distinct else self._runs.lengths
        return _restored, (type(self), self._extent, values, lengths)


def _restored(
    cls: type[ValueMesh[Any]], extent: Extent, values: list[Any], lengths: list[int] | None
) -> ValueMesh[Any]:
    """Undoes the pickling of a mesh."""
    return cls._made(extent, _Runs(values, lengths or [1] * len(values)))


def _extent_of(shape: Extent | Region | MeshTrait) -> Extent:
    return shape if isinstance(shape, Extent) else shape.extent


def _read(entry: Any) -> Any:
    return entry.read() if type(entry) is _Cell else entry


def _pooled(values: Iterable[Any]) -> Iterator[Any]:
    """The values, with one object for equal ones of a type that cannot be told apart.

    Other objects are left alone: they may be mutable, or compare in ways of their own.
    """
    pool: dict[tuple[type, Any], Any] = {}
    for value in values:
        kind = type(value)
        if kind in _POOLED:
            yield pool.setdefault((kind, value), value)
        elif kind is float:
            # By text, because 0.0 equals -0.0 and is not the same.
            yield pool.setdefault((kind, repr(value)), value)
        else:
            yield value
