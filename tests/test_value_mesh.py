"""`ValueMesh` against NumPy, and what it stores, loads and pickles."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from roost._shape import Extent
from roost.actor._value_mesh import ValueMesh

HOSTS_GPUS = Extent(["hosts", "gpus"], [2, 4])
LABELS = ["zones", "hosts", "gpus"]


class Arrived:
    """A value in the form in which it arrived, which counts its loads."""

    def __init__(self, value: object) -> None:
        self.value = value
        self.loads = 0

    def load(self) -> object:
        self.loads += 1
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@st.composite
def cut_meshes(draw: st.DrawFn) -> tuple[ValueMesh[int], np.ndarray[Any, Any]]:
    """A mesh sliced at random, with the array of its values."""
    sizes = draw(st.lists(st.integers(1, 4), max_size=3))
    count = int(np.prod(sizes, dtype=int))
    array = np.array(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), dtype=int)
    array = array.reshape(sizes)
    mesh = ValueMesh(Extent(LABELS[: len(sizes)], sizes), array.flatten().tolist())
    bounds = st.none() | st.integers(-5, 5)
    steps = st.none() | st.integers(1, 3)
    dims = {
        label: draw(st.integers(0, size - 1) | st.builds(slice, bounds, bounds, steps))
        for label, size in mesh.sizes.items()
        if draw(st.booleans())
    }
    array = array[tuple(dims.get(label, slice(None)) for label in mesh.extent)]
    assume(array.size > 0)
    return mesh.slice(**dims), array


@given(cut_meshes())
def test_slicing_keeps_the_values_that_numpy_keeps(
    cut: tuple[ValueMesh[int], np.ndarray[Any, Any]],
) -> None:
    mesh, array = cut
    assert mesh.values() == array.flatten().tolist()
    assert mesh.extent.sizes == list(array.shape)
    for rank, (point, value) in enumerate(mesh):
        assert (point.rank, point.extent) == (rank, mesh.extent)
        assert value == array[tuple(point.values())] == mesh[point] == mesh[rank] == mesh.get(rank)
        assert mesh.item(**point) == value


@given(cut_meshes())
def test_reshaping_keeps_values_in_order(
    cut: tuple[ValueMesh[int], np.ndarray[Any, Any]],
) -> None:
    mesh, _ = cut
    flat = mesh.flatten("rank")
    assert flat.values() == mesh.values()
    assert flat.split(rank=("a", "b"), b=1).values() == mesh.values()
    assert mesh.rename(**{label: label[0] for label in mesh.extent}).values() == mesh.values()


@given(cut_meshes())
def test_a_mesh_survives_pickle(cut: tuple[ValueMesh[int], np.ndarray[Any, Any]]) -> None:
    mesh, _ = cut
    back = pickle.loads(pickle.dumps(mesh))
    assert (back.extent, back.values()) == (mesh.extent, mesh.values())


def test_items_are_points_with_values() -> None:
    mesh = ValueMesh(HOSTS_GPUS, "abcdefgh")
    assert dict(mesh) == dict(mesh.items())
    assert dict(mesh)[HOSTS_GPUS.point(5)] == "f"
    assert len(mesh) == 8


def test_a_view_numbers_its_points_anew() -> None:
    view = ValueMesh(HOSTS_GPUS, range(8)).slice(hosts=1)
    assert [(point.rank, dict(point), value) for point, value in view.slice(gpus=slice(2, 4))] == [
        (0, {"gpus": 0}, 6),
        (1, {"gpus": 1}, 7),
    ]


def test_a_mesh_of_one_has_a_point_without_dimensions() -> None:
    mesh = ValueMesh(Extent([], []), ["only"])
    assert (mesh.item(), mesh[0], mesh.values()) == ("only", "only", ["only"])


def test_a_region_or_a_mesh_gives_its_extent() -> None:
    region = HOSTS_GPUS.region.cut(hosts=1)
    mesh = ValueMesh(region, "abcd")
    assert (mesh.sizes, mesh.get(2)) == ({"gpus": 4}, "c")
    assert ValueMesh(mesh, range(4)).extent == mesh.extent


@pytest.mark.parametrize("count", [0, 7, 9])
def test_a_wrong_number_of_values_is_a_value_error(count: int) -> None:
    with pytest.raises(ValueError, match=f"has 8 ranks, got {count} values"):
        ValueMesh(HOSTS_GPUS, range(count))


def test_item_needs_every_dimension() -> None:
    mesh = ValueMesh(HOSTS_GPUS, range(8))
    with pytest.raises(KeyError, match='no index for dimension "gpus"'):
        mesh.item(hosts=0)
    with pytest.raises(KeyError, match="the dimensions are hosts, gpus"):
        mesh.item(hosts=0, gpus=0, cpus=0)
    with pytest.raises(IndexError):
        mesh.item(hosts=0, gpus=4)


def test_a_rank_out_of_range_is_refused() -> None:
    mesh = ValueMesh(HOSTS_GPUS, range(8))
    for rank in (-1, 8):
        with pytest.raises(ValueError, match="out of range"):
            mesh.get(rank)
        with pytest.raises(IndexError, match="out of range"):
            mesh[rank]
    with pytest.raises(KeyError, match="is a point of"):
        mesh[Extent(["hosts"], [2]).point(0)]
    with pytest.raises(TypeError):
        mesh["hosts"]  # type: ignore[index]


def test_indexed_values_may_come_in_any_order() -> None:
    mesh = ValueMesh.from_indexed(Extent(["gpus"], [3]), [(2, "c"), (0, "a"), (1, "b")])
    assert mesh.values() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ([(0, "a")], "no value for ranks"),
        ([(0, "a"), (0, "b")], "rank 0 comes twice"),
        ([(0, "a"), (2, "b")], "out of range"),
        ([(-1, "a")], "out of range"),
    ],
)
def test_indexed_values_must_cover_every_rank_once(pairs: list[tuple[int, str]], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ValueMesh.from_indexed(Extent(["gpus"], [2]), pairs)


def test_equal_plain_values_are_stored_and_pickled_once() -> None:
    texts = ["".join(["x"] * 1000) for _ in range(1000)]
    mesh = ValueMesh(Extent(["gpus"], [1000]), texts)
    assert len({id(value) for value in mesh.values()}) == 1
    assert len(pickle.dumps(mesh)) < 3000
    assert pickle.loads(pickle.dumps(mesh)).values() == texts


@pytest.mark.parametrize(
    "pair", [(0, False), (1, 1.0), (0.0, -0.0), ("a", b"a"), ([], []), ({}, {})], ids=repr
)
def test_values_that_can_be_told_apart_stay_apart(pair: tuple[Any, Any]) -> None:
    left, right = ValueMesh(Extent(["gpus"], [2]), pair).values()
    assert left is pair[0]
    assert right is pair[1]


def test_arrays_are_never_compared() -> None:
    arrays = [np.zeros(3), np.zeros(3)]
    mesh = ValueMesh(Extent(["gpus"], [2]), arrays)
    assert all(got is put for got, put in zip(mesh.values(), arrays, strict=True))


def test_lazy_values_load_when_looked_at_and_once() -> None:
    cells = [Arrived(rank) for rank in range(8)]
    mesh: ValueMesh[int] = ValueMesh._from_lazy(HOSTS_GPUS, cells)
    view = mesh.slice(hosts=1).rename(gpus="g")
    assert "not loaded" in repr(mesh)
    assert [cell.loads for cell in cells] == [0] * 8
    assert view.item(g=2) == mesh[6] == view[2] == 6
    assert [cell.loads for cell in cells] == [0, 0, 0, 0, 0, 0, 1, 0]
    assert mesh.values() == mesh.values() == list(range(8))
    assert [cell.loads for cell in cells] == [1] * 8


def test_a_value_that_does_not_load_fails_only_where_it_is_looked_at() -> None:
    cells = [Arrived("fine"), Arrived(ImportError("no such module"))]
    mesh: ValueMesh[str] = ValueMesh._from_lazy(Extent(["gpus"], [2]), cells)
    assert mesh[0] == "fine"
    for _ in range(2):
        with pytest.raises(ImportError, match="no such module"):
            mesh[1]


def test_a_repeated_lazy_value_loads_once() -> None:
    cell = Arrived([1, 2])
    mesh: ValueMesh[list[int]] = ValueMesh._from_lazy(HOSTS_GPUS, [cell] * 8)
    assert mesh.values() == [[1, 2]] * 8
    assert cell.loads == 1


def test_a_lazy_mesh_pickles_as_its_values() -> None:
    mesh: ValueMesh[int] = ValueMesh._from_lazy(HOSTS_GPUS, map(Arrived, range(8)))
    assert pickle.loads(pickle.dumps(mesh)).values() == list(range(8))


def test_a_value_with_a_load_method_is_a_value() -> None:
    cell = Arrived(1)
    assert ValueMesh(Extent([], []), [cell])[0] is cell


def test_a_repr_is_bounded() -> None:
    mesh = ValueMesh(Extent(["gpus"], [10_000]), ["x" * 10_000] * 10_000)
    assert len(repr(mesh)) < 500
    assert repr(ValueMesh(Extent(["a"], [2]), [1, "b"])) == "ValueMesh({a: 2}, [1, 'b'])"
