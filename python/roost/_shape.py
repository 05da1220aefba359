"""Shapes, and what every mesh does with its own.

The shapes are Rust (`roost._core`); this module gives them their Python manners: the exception for
a dimension that does not exist, their place among mappings, and `MeshTrait`, through which host,
process, actor and value meshes are sliced and reshaped in one way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Self, TypeAlias

from roost._core import Extent, Point, Region, Slice

__all__ = [
    "Extent",
    "MeshTrait",
    "NDSlice",
    "Point",
    "Region",
    "Shape",
    "Slice",
    "UnknownDimensionError",
]

Mapping.register(Extent)
Mapping.register(Point)

NDSlice = Slice
Shape = Region

Pick: TypeAlias = "int | slice"


class UnknownDimensionError(KeyError, ValueError, TypeError):
    """A dimension was named that the shape does not have, or one that it has was left out.

    The message lists the dimensions that exist. It is a `KeyError` because points and extents are
    mappings, a `TypeError` because dimensions are keyword arguments of meshes, and a `ValueError`
    for programs that look points up the way other frameworks answer.
    """

    def __str__(self) -> str:
        # KeyError would print the message quoted.
        return Exception.__str__(self)


class MeshTrait:
    """What every mesh is: ranks under named dimensions, of which it gives away views.

    A class that has it says which ranks it holds (`_region`) and makes itself anew for other ranks
    (`_with_region`). A view is a reference to the same things, made without asking them.
    """

    _region: Region
    """The base ranks that this mesh holds, under its dimensions."""

    def _with_region(self, region: Region) -> Self:
        """The mesh of a region of the same base ranks."""
        raise NotImplementedError

    @property
    def extent(self) -> Extent:
        """The dimensions and their sizes, outermost first."""
        return self._region.extent

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dimension."""
        return dict(self.extent)

    def size(self, dim: str | Sequence[str] | None = None) -> int:
        """The number of ranks, in all or along some dimensions.

        Args:
            dim: one dimension, several (their sizes are multiplied), or None for all.

        Raises:
            UnknownDimensionError: a dimension is not one of this mesh.
        """
        extent = self.extent
        if dim is None:
            return extent.nelements
        if isinstance(dim, str):
            return extent[dim]
        return prod(extent[label] for label in dim)

    def __len__(self) -> int:
        return len(self._region)

    def slice(self, /, **dims: Pick) -> Self:
        """A view of some of the ranks. Costs nothing on the other side and owns nothing.

        Args:
            dims: for each dimension to cut an index, which removes the dimension, or a `slice`
                with a positive step, which keeps it. Other dimensions stay whole.

        Raises:
            UnknownDimensionError: a dimension is not one of this mesh.
            IndexError: an index is negative or not below the size.
            ValueError: a slice selects nothing, or its step is not positive.

        Example:
            >>> from roost.actor import Extent, ValueMesh
            >>> mesh = ValueMesh(Extent(["hosts", "gpus"], [2, 4]), range(8))
            >>> mesh.slice(hosts=1, gpus=slice(0, 4, 2)).values()
            [4, 6]
        """
        return self._with_region(self._region.cut(**dims))

    def flatten(self, name: str) -> Self:
        """A view of the same ranks under one dimension.

        Args:
            name: what to call the dimension.

        Raises:
            ValueError: the ranks are sparse, that is, not consecutive in the mesh that this one
                was sliced from.

        Example:
            >>> from roost.actor import Extent, ValueMesh
            >>> mesh = ValueMesh(Extent(["hosts", "gpus"], [2, 4]), range(8))
            >>> mesh.flatten("rank").slice(rank=5).values()
            [5]
        """
        return self._with_region(self._region.flatten(name))

    def rename(self, /, **names: str) -> Self:
        """A view of the same ranks with some dimensions called otherwise.

        Args:
            names: the new name of each dimension to rename.

        Raises:
            UnknownDimensionError: a dimension is not one of this mesh.
            ValueError: two dimensions would have one name.

        Example:
            >>> from roost.actor import Extent, ValueMesh
            >>> ValueMesh(Extent(["hosts", "gpus"], [2, 4]), range(8)).rename(hosts="dp").extent
            {dp: 2, gpus: 4}
        """
        return self._with_region(self._region.rename(**names))

    def split(self, /, **parts: Sequence[str] | int) -> Self:
        """A view of the same ranks with some dimensions replaced by several each.

        Args:
            parts: the names that replace each dimension to split, outermost first, and the sizes
                of new dimensions. One size of each group may be left out and is inferred.

        Raises:
            UnknownDimensionError: a dimension to split is not one of this mesh.
            ValueError: the sizes do not multiply to that of the dimension, more than one is left
                out, one is not needed, or two dimensions would have one name.

        Example:
            >>> from roost.actor import Extent, ValueMesh
            >>> mesh = ValueMesh(Extent(["gpus"], [8]), range(8))
            >>> mesh.split(gpus=("pp", "tp"), tp=2).extent
            {pp: 4, tp: 2}
        """
        return self._with_region(self._region.split(**parts))

    def to_table(self) -> str:
        """The ranks as text: the innermost dimension from left to right, the others downwards.

        Example:
            >>> from roost.actor import Extent, ValueMesh
            >>> print(ValueMesh(Extent(["hosts", "gpus"], [2, 3]), range(6)).to_table())
                     gpus=0  gpus=1  gpus=2
            hosts=0       0       1       2
            hosts=1       3       4       5
        """
        return _table(self._region)


def _table(region: Region) -> str:
    extent, ranks = region.extent, region.ranks()
    if not extent:
        return str(ranks[0])
    *outer_labels, label = extent.labels
    *outer_sizes, width = extent.sizes
    outer = Extent(outer_labels, outer_sizes)
    names = ["", *(_coordinates(outer.point(row)) for row in range(outer.nelements))]
    rows = [[f"{label}={index}" for index in range(width)]]
    for row in range(outer.nelements):
        rows.append([str(rank) for rank in ranks[row * width : (row + 1) * width]])
    name_width = max(map(len, names))
    cell_width = max((len(cell) for row in rows for cell in row), default=0)
    lines = []
    for name, cells in zip(names, rows, strict=True):
        title = [name.ljust(name_width)] if outer_labels else []
        lines.append("  ".join([*title, *(cell.rjust(cell_width) for cell in cells)]))
    return "\n".join(lines)


def _coordinates(point: Point) -> str:
    return " ".join(f"{label}={index}" for label, index in point.items())
