"""Shapes against NumPy: a view of a region holds the ranks that the same view of an array holds."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from roost._shape import (
    Extent,
    MeshTrait,
    NDSlice,
    Point,
    Region,
    Shape,
    Slice,
    UnknownDimensionError,
)

LABELS = ["zones", "hosts", "gpus", "lanes"]
HOSTS_GPUS = Extent(["hosts", "gpus"], [2, 4])

sizes = st.lists(st.integers(1, 5), max_size=4)
bounds = st.none() | st.integers(-7, 7)
ranges = st.builds(slice, bounds, bounds, st.none() | st.integers(1, 4))


class RankMesh(MeshTrait):
    """A mesh of nothing but ranks."""

    def __init__(self, region: Region) -> None:
        self.held = region

    @property
    def _region(self) -> Region:
        return self.held

    def _with_region(self, region: Region) -> RankMesh:
        return RankMesh(region)


def mesh_of(**dims: int) -> RankMesh:
    return RankMesh(Extent(dims.keys(), dims.values()).region)


def array_of(extent: Extent) -> NDArray[np.int64]:
    return np.arange(extent.nelements).reshape(extent.sizes)


@st.composite
def extents(draw: st.DrawFn) -> Extent:
    drawn = draw(sizes)
    return Extent(LABELS[: len(drawn)], drawn)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Extent, dict[str, Any], NDArray[np.int64]]:
    """An extent, how to cut it, and the array that NumPy cuts out."""
    extent = draw(extents())
    dims = {
        label: draw(st.integers(0, size - 1) | ranges)
        for label, size in extent.items()
        if draw(st.booleans())
    }
    array = array_of(extent)[tuple(dims.get(label, slice(None)) for label in extent)]
    return extent, dims, array


@given(cuts())
def test_slicing_takes_the_ranks_that_numpy_takes(
    cut: tuple[Extent, dict[str, Any], NDArray[np.int64]],
) -> None:
    extent, dims, array = cut
    mesh = RankMesh(extent.region)
    if array.size == 0:
        with pytest.raises(ValueError, match="selects nothing"):
            mesh.slice(**dims)
        return
    view = mesh.slice(**dims)
    kept = [label for label in extent if not isinstance(dims.get(label), int)]
    assert view.held.ranks() == array.flatten().tolist()
    assert view.sizes == dict(zip(kept, array.shape, strict=True))
    assert len(view) == view.size() == array.size


@given(cuts(), st.data())
def test_a_view_of_a_view_is_a_view(
    cut: tuple[Extent, dict[str, Any], NDArray[np.int64]], data: st.DataObject
) -> None:
    extent, dims, array = cut
    assume(array.size > 0 and array.ndim > 0)
    view = RankMesh(extent.region).slice(**dims)
    again = data.draw(ranges)
    expected = array[again]
    assume(expected.size > 0)
    assert view.slice(**{view.extent.labels[0]: again}).held.ranks() == expected.flatten().tolist()


@given(cuts())
def test_every_base_rank_of_a_region_has_its_point(
    cut: tuple[Extent, dict[str, Any], NDArray[np.int64]],
) -> None:
    extent, dims, array = cut
    assume(array.size > 0)
    region = extent.region.cut(**dims)
    for indices, rank in np.ndenumerate(array):
        point = region.point_of_base_rank(int(rank))
        assert tuple(point.values()) == indices
        assert region.coordinates(int(rank)) == dict(point)
        assert region.ndslice.nditem(indices) == rank
        assert region.ndslice.get(point.rank) == rank
        assert region.ndslice.index(int(rank)) == point.rank
    for absent in set(range(extent.nelements)) - set(array.flatten().tolist()):
        assert absent not in region.ndslice
        with pytest.raises(ValueError, match="is not in"):
            region.point_of_base_rank(absent)


@given(extents())
def test_flatten_and_split_undo_each_other(extent: Extent) -> None:
    mesh = RankMesh(extent.region)
    flat = mesh.flatten("rank")
    assert flat.sizes == {"rank": extent.nelements}
    assert flat.held.ranks() == mesh.held.ranks()
    assume(extent.labels)
    assert flat.split(rank=extent.labels, **extent).extent == extent


@given(extents())
def test_rename_changes_labels_alone(extent: Extent) -> None:
    mesh = RankMesh(extent.region)
    renamed = mesh.rename(**{label: label.upper() for label in extent})
    assert renamed.extent.labels == [label.upper() for label in extent.labels]
    assert renamed.held.ndslice == mesh.held.ndslice
    assert renamed.rename(**{label.upper(): label for label in extent}).held == mesh.held


def test_labels_can_be_swapped() -> None:
    swapped = RankMesh(HOSTS_GPUS.region).rename(hosts="gpus", gpus="hosts")
    assert swapped.sizes == {"gpus": 2, "hosts": 4}


def test_a_flattened_and_renamed_mesh_slices() -> None:
    flat = mesh_of(hosts=2, gpus=4).flatten("rank").rename(rank="r")
    assert flat.slice(r=slice(1, None, 3)).held.ranks() == [1, 4, 7]
    assert flat.slice(r=5).held.ranks() == [5]


def test_split_infers_one_size_of_each_group_and_keeps_the_order() -> None:
    mesh = mesh_of(host=32, gpu=8).split(host=("dp", "pp"), gpu=("tp", "cp"), pp=16, cp=2)
    assert mesh.sizes == {"dp": 2, "pp": 16, "tp": 4, "cp": 2}
    assert mesh.held.ranks() == list(range(256))


def test_split_of_a_strided_view_keeps_its_ranks() -> None:
    view = mesh_of(gpus=16).slice(gpus=slice(1, None, 2))
    assert view.split(gpus=("a", "b"), b=4).slice(a=1).held.ranks() == [9, 11, 13, 15]


@pytest.mark.parametrize(
    "parts",
    [
        {"gpus": ("a", "b"), "a": 3},
        {"gpus": ("a", "b"), "a": 2, "b": 4},
        {"gpus": ("a", "b")},
        {"gpus": ("a", "a"), "a": 2},
        {"gpus": ("a", "hosts"), "a": 2},
        {"gpus": ("a", "b"), "a": 2, "c": 2},
        {"gpus": ("a", "b"), "a": 0},
        {"gpus": ("a", "b"), "a": -2},
        {"hosts": 2},
        {"gpus": ()},
    ],
)
def test_a_split_that_does_not_come_out_is_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each case has its own text
        mesh_of(hosts=2, gpus=4).split(**parts)


def test_a_split_into_a_string_is_refused() -> None:
    with pytest.raises(TypeError, match="gpus: expected several items, got the string 'ab'"):
        mesh_of(gpus=4).split(gpus="ab")


@pytest.mark.parametrize("dims", [{"gpus": slice(0, 4, 2)}, {"gpus": slice(0, 2)}, {"gpus": 0}], ids=str)
def test_a_sparse_mesh_does_not_flatten(dims: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="sparse"):
        mesh_of(hosts=2, gpus=4).slice(**dims).flatten("rank")


def test_consecutive_parts_and_unit_dimensions_flatten() -> None:
    assert mesh_of(hosts=4, gpus=2).slice(hosts=slice(1, 3)).flatten("r").held.ranks() == [*range(2, 6)]
    assert mesh_of(a=1, b=3, c=1).flatten("r").held.ranks() == [0, 1, 2]
    assert mesh_of(a=4).slice(a=slice(2, 3)).flatten("r").sizes == {"r": 1}
    assert mesh_of().flatten("r").sizes == {"r": 1}
    assert mesh_of(a=0, b=2).flatten("r").sizes == {"r": 0}


@pytest.mark.parametrize("op", ["slice", "rename", "split", "size", "extent", "point"])
def test_an_unknown_dimension_is_an_error_that_lists_those_that_exist(op: str) -> None:
    mesh = mesh_of(hosts=2, gpus=4)
    actions: dict[str, Callable[[], object]] = {
        "slice": lambda: mesh.slice(cpus=0),
        "rename": lambda: mesh.rename(cpus="x"),
        "split": lambda: mesh.split(cpus=("x",)),
        "size": lambda: mesh.size("cpus"),
        "extent": lambda: mesh.extent["cpus"],
        "point": lambda: mesh.extent.point(0)["cpus"],
    }
    for kind in (TypeError, KeyError, ValueError, UnknownDimensionError):
        with pytest.raises(kind) as caught:
            actions[op]()
        assert str(caught.value) == 'no dimension "cpus"; the dimensions are hosts, gpus'


@pytest.mark.parametrize("index", [-1, 4, 2**70, -(2**70)])
def test_an_index_out_of_range_is_an_index_error(index: int) -> None:
    with pytest.raises(IndexError, match='out of range for dimension "gpus", which has size 4'):
        mesh_of(hosts=2, gpus=4).slice(gpus=index)


@pytest.mark.parametrize("cut", [slice(2, 2), slice(4, None), slice(3, 1), slice(2**70, None)])
def test_a_slice_of_nothing_is_a_value_error(cut: slice) -> None:
    with pytest.raises(ValueError, match="selects nothing"):
        mesh_of(gpus=4).slice(gpus=cut)


@pytest.mark.parametrize("step", [0, -1])
def test_a_step_that_is_not_positive_is_a_value_error(step: int) -> None:
    with pytest.raises(ValueError, match="step must be positive"):
        mesh_of(gpus=4).slice(gpus=slice(None, None, step))


def test_what_is_neither_index_nor_slice_is_a_type_error_that_names_the_argument() -> None:
    with pytest.raises(TypeError, match=r"gpus: .*str"):
        mesh_of(gpus=4).slice(gpus="all")  # type: ignore[arg-type]


def test_sizes_of_several_dimensions_multiply() -> None:
    mesh = mesh_of(zones=2, hosts=3, gpus=4)
    assert mesh.size() == len(mesh) == 24
    assert mesh.size("hosts") == 3
    assert mesh.size(["zones", "gpus"]) == 8
    assert mesh.size([]) == 1


def test_a_table_shows_ranks_by_coordinates() -> None:
    assert mesh_of(hosts=2, gpus=3).slice(gpus=slice(1, 3)).to_table().splitlines() == [
        "         gpus=0  gpus=1",
        "hosts=0       1       2",
        "hosts=1       4       5",
    ]
    assert mesh_of(gpus=2).to_table() == "gpus=0  gpus=1\n     0       1"
    assert mesh_of().to_table() == "0"
    assert mesh_of(a=2, b=0).to_table()


def test_a_point_is_a_mapping_of_indices() -> None:
    point = HOSTS_GPUS.point(6)
    assert isinstance(point, Mapping)
    assert (dict(point), {**point}) == ({"hosts": 1, "gpus": 2},) * 2
    assert list(point) == ["hosts", "gpus"]
    assert (list(point.values()), point.keys() & {"gpus"}) == ([1, 2], {"gpus"})
    assert list(point.items()) == [("hosts", 1), ("gpus", 2)]
    assert (point.rank, point.extent, point.size("gpus"), len(point)) == (6, HOSTS_GPUS, 4, 2)
    assert "gpus" in point
    assert "cpus" not in point
    assert 3 not in point  # type: ignore[comparison-overlap]
    assert (point.get("gpus"), point.get("cpus"), point.get("cpus", 9)) == (2, None, 9)
    assert mesh_of(hosts=2, gpus=4).slice(**point).held.ranks() == [6]
    match point:
        case {"hosts": 1, **rest}:
            assert rest == {"gpus": 2}
        case _:
            pytest.fail("a point matches a mapping pattern")


@given(extents())
def test_points_number_an_extent_row_major(extent: Extent) -> None:
    for rank, indices in enumerate(np.ndindex(*extent.sizes)):
        point = extent.point(rank)
        assert tuple(point.values()) == indices
        assert extent.rank(**point) == rank
    for rank in (-1, extent.nelements, 2**70):
        with pytest.raises(ValueError, match="out of range"):
            Point(rank, extent)


def test_a_point_equals_points_of_its_rank_and_extent_alone() -> None:
    point = HOSTS_GPUS.point(5)
    same = Point(5, Extent(["hosts", "gpus"], [2, 4]))
    assert point == same
    assert hash(point) == hash(same)
    assert point != HOSTS_GPUS.point(4)
    assert point != Extent(["h", "g"], [2, 4]).point(5)
    assert point != {"hosts": 1, "gpus": 1}


def test_an_extent_is_a_mapping_of_sizes() -> None:
    assert isinstance(HOSTS_GPUS, Mapping)
    assert dict(HOSTS_GPUS) == {"hosts": 2, "gpus": 4}
    assert (HOSTS_GPUS.labels, HOSTS_GPUS.sizes) == (["hosts", "gpus"], [2, 4])
    assert (HOSTS_GPUS.nelements, len(HOSTS_GPUS)) == (8, 2)
    assert "hosts" in HOSTS_GPUS
    assert "cpus" not in HOSTS_GPUS
    assert HOSTS_GPUS.get("cpus", 1) == 1
    assert Extent([], []).nelements == 1


@pytest.mark.parametrize(
    ("labels", "extent_sizes"),
    [(["a"], [1, 2]), (["a", "a"], [1, 2]), (["a"], [-1]), (["a", "b"], [2**62, 4])],
)
def test_an_extent_that_cannot_be_is_refused(labels: list[str], extent_sizes: list[int]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each case has its own text
        Extent(labels, extent_sizes)


def test_reprs_are_short_and_readable() -> None:
    assert repr(Extent(["a", "b"], [2, 3])) == "{a: 2, b: 3}"
    assert repr(Extent(["a", "b"], [2, 3]).point(5)) == "{'a': 1/2, 'b': 2/3}"
    assert repr(Extent([], []).point(0)) == "{}"
    for value in (HOSTS_GPUS.region, HOSTS_GPUS.region.ndslice):
        assert eval(repr(value)) == value


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "value",
    [
        HOSTS_GPUS,
        HOSTS_GPUS.point(3),
        HOSTS_GPUS.region.cut(gpus=slice(1, 4, 2)),
        Slice(offset=3, sizes=[2, 2], strides=[8, 1]),
        Region.unity(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_shapes_survive_pickle_and_copy(value: object, protocol: int) -> None:
    back = pickle.loads(pickle.dumps(value, protocol))
    assert back == value
    assert hash(back) == hash(value)
    assert repr(back) == repr(value)
    assert copy.deepcopy(value) == value


def test_public_classes_name_their_public_home() -> None:
    for kind in (Extent, Point, Slice, Region):
        assert kind.__module__ == "roost.actor"


def test_a_slice_is_a_sequence_of_ranks() -> None:
    held = Slice(offset=1, sizes=[2, 3], strides=[8, 2])
    ranks = [1, 3, 5, 9, 11, 13]
    assert list(held) == ranks
    assert (len(held), held.ndim) == (6, 2)
    assert (held.offset, held.sizes, held.strides) == (1, [2, 3], [8, 2])
    assert (held[0], held[-1], held[1:5:2], held[::-1]) == (1, 13, (3, 9), tuple(ranks[::-1]))
    assert 9 in held
    assert 2 not in held
    assert held.coordinates(11) == [1, 1]


@pytest.mark.parametrize(
    ("look", "error"),
    [
        (lambda held: held[6], IndexError),
        (lambda held: held.get(-1), IndexError),
        (lambda held: held.nditem([2, 0]), IndexError),
        (lambda held: held.nditem([1]), ValueError),
        (lambda held: held.index(2), ValueError),
        (lambda held: held.coordinates(-1), ValueError),
    ],
)
def test_a_slice_refuses_what_it_does_not_hold(
    look: Callable[[Slice], object], error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"out of range|is not in|entries"):
        look(Slice(offset=1, sizes=[2, 3], strides=[8, 2]))


def test_a_slice_takes_keywords_alone() -> None:
    with pytest.raises(TypeError):
        Slice(0, [2], [1])  # type: ignore[call-arg]


@given(st.lists(st.integers(0, 50)))
def test_slices_from_a_list_hold_its_ranks(ranks: list[int]) -> None:
    covered = [rank for part in Slice.from_list(ranks) for rank in part]
    assert covered == sorted(set(ranks))


def test_a_shape_restricts_by_index_and_by_range() -> None:
    shape = HOSTS_GPUS.region.as_shape()
    assert shape.at("hosts", 1).ranks() == [4, 5, 6, 7]
    assert shape.select("gpus", slice(0, 4, 3)).ranks() == [0, 3, 4, 7]
    assert shape.index(hosts=1, gpus=2).ranks() == [6]
    assert shape.index(hosts=1, gpus=2).labels == []
    assert shape.extent == HOSTS_GPUS
    assert (len(Shape.unity()), Shape.unity().ranks()) == (1, [0])
    assert shape.region.slice() == shape.ndslice == NDSlice.new_row_major([2, 4])
    with pytest.raises(TypeError):
        shape.index(hosts=slice(0, 1))  # type: ignore[arg-type]
