"""Chains of views of a real mesh reach the ranks that NumPy says, under the coordinates that it says."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from roost.actor import ProcMesh, this_host

from .servants import Ranked

SIZES = {"a": 2, "b": 3, "c": 2}
calls = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def grid() -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs(SIZES)
    yield mesh
    mesh.stop().get(timeout=30)


@pytest.fixture(scope="module")
def ranked(grid: ProcMesh) -> Any:
    return grid.spawn("ranked", Ranked)


@dataclasses.dataclass
class Model:
    """A mesh, and the array of ranks that it should hold."""

    mesh: Any
    ranks: np.ndarray
    labels: list[str]


def is_dense(ranks: np.ndarray) -> bool:
    """Whether the ranks follow each other, so that the mesh can be flattened."""
    flat = ranks.ravel()
    return bool((np.diff(flat) == 1).all())


def sliced(model: Model, data: st.DataObject) -> Model:
    picks: dict[str, Any] = {}
    for label, size in zip(model.labels, model.ranks.shape, strict=True):
        start = data.draw(st.integers(0, size - 1), label=f"start of {label}")
        kind = data.draw(st.sampled_from(["whole", "index", "slice"]), label=f"kind of {label}")
        if kind == "index":
            picks[label] = start
        elif kind == "slice":
            stop = data.draw(st.integers(start + 1, size + 2))
            picks[label] = slice(start, stop, data.draw(st.integers(1, 3)))
    index = tuple(picks.get(label, slice(None)) for label in model.labels)
    labels = [label for label in model.labels if not isinstance(picks.get(label), int)]
    return Model(model.mesh.slice(**picks), np.asarray(model.ranks[index]), labels)


def flattened(model: Model, data: st.DataObject) -> Model:
    assume(is_dense(model.ranks))
    return Model(model.mesh.flatten("flat"), model.ranks.ravel(), ["flat"])


def renamed(model: Model, data: st.DataObject) -> Model:
    assume(model.labels)
    old = data.draw(st.sampled_from(model.labels))
    new = f"{old}_new"
    return Model(
        model.mesh.rename(**{old: new}),
        model.ranks,
        [new if label == old else label for label in model.labels],
    )


def divided(model: Model, data: st.DataObject) -> Model:
    assume(model.labels)
    axis = data.draw(st.integers(0, len(model.labels) - 1))
    size = model.ranks.shape[axis]
    inner = data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    old = model.labels[axis]
    names = (f"{old}o", f"{old}i")
    shape = [*model.ranks.shape[:axis], size // inner, inner, *model.ranks.shape[axis + 1 :]]
    return Model(
        model.mesh.split(**{old: names, names[1]: inner}),
        model.ranks.reshape(shape),
        [*model.labels[:axis], *names, *model.labels[axis + 1 :]],
    )


def pickled(model: Model, data: st.DataObject) -> Model:
    return Model(pickle.loads(pickle.dumps(model.mesh)), model.ranks, model.labels)


STEPS = [sliced, flattened, renamed, divided, pickled]


@calls
@given(st.lists(st.sampled_from(STEPS), max_size=5), st.data())
def test_a_chain_of_views_reaches_the_right_ranks(ranked: Any, steps: list[Any], data: st.DataObject) -> None:
    model = Model(ranked, np.arange(12).reshape(tuple(SIZES.values())), list(SIZES))
    for step in steps:
        model = step(model, data)
        assume(len(model.labels) <= 6)
        assert model.mesh.sizes == dict(zip(model.labels, model.ranks.shape, strict=True))
        assert len(model.mesh) == model.ranks.size
    values = model.mesh.told.call().get(timeout=20)
    assert len(values) == model.ranks.size
    for point, (rank, told_point, told_sizes) in values:
        where = tuple(point[label] for label in model.labels)
        assert rank == int(model.ranks[where])
        assert told_point == dict(point)
        assert told_sizes == model.mesh.sizes


@calls
@given(st.lists(st.sampled_from([sliced, renamed, pickled]), max_size=3), st.data())
def test_actors_spawned_on_a_view_count_their_ranks_in_it(
    grid: ProcMesh, steps: list[Any], data: st.DataObject
) -> None:
    model = Model(grid, np.arange(12).reshape(tuple(SIZES.values())), list(SIZES))
    for step in steps:
        model = step(model, data)
    mesh = model.mesh.spawn("here", Ranked)
    values = mesh.told.call().get(timeout=20)
    assert [rank for rank, _, _ in values.values()] == list(range(model.ranks.size))
    assert [told for _, told, _ in values.values()] == [dict(point) for point, _ in values]
    mesh.stop().get(timeout=20)


@calls
@given(st.data())
def test_a_view_that_was_sent_elsewhere_reaches_the_same_ranks(ranked: Any, data: st.DataObject) -> None:
    model = sliced(Model(ranked, np.arange(12).reshape(tuple(SIZES.values())), list(SIZES)), data)
    asking = ranked.slice(a=data.draw(st.integers(0, 1)), b=2, c=1)
    assume(asking.told.call_one().get(timeout=20)[0] not in model.ranks.ravel())
    assert asking.ranks_of.call_one(model.mesh).get(timeout=20) == model.ranks.ravel().tolist()


@calls
@given(st.data())
def test_values_are_viewed_like_the_mesh_that_they_came_from(ranked: Any, data: st.DataObject) -> None:
    whole = ranked.told.call().get(timeout=20)
    ranks = np.arange(12).reshape(tuple(SIZES.values()))
    model = Model(whole, ranks, list(SIZES))
    for step in data.draw(st.lists(st.sampled_from([sliced, flattened, renamed, divided]), max_size=3)):
        model = step(model, data)
    assert [rank for rank, _, _ in model.mesh.values()] == model.ranks.ravel().tolist()
    for point, (rank, _, _) in model.mesh.items():
        assert rank == int(model.ranks[tuple(point.values())])
