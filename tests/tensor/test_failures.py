"""Operators that fail on a worker: what depends on them raises at the fetch, everything else goes on."""

from __future__ import annotations

import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from roost.actor import ActorError, ProcMesh
from roost.tensor import fetch_all, inspect, rank_tensors
from roost.tensor._active import place_of


def out_of_range(mesh: ProcMesh) -> Any:
    """A tensor that only rank 1 can compute: elsewhere an index lies outside."""
    index = 5 * (1 - rank_tensors(mesh)["gpus"].reshape(1))
    with mesh.activate():
        return torch.arange(3.0)[index]  # the line that is to blame


def test_a_failed_operator_raises_at_the_fetch_with_the_line_that_issued_it(pair: ProcMesh) -> None:
    failed = out_of_range(pair)
    later = (failed * 2).sum()

    with pytest.raises(IndexError) as raised:
        inspect(later)

    assert isinstance(raised.value, ActorError)
    assert "aten::index.Tensor failed on rank 0 (gpus=0)" in raised.value.exception_formatted
    assert f"{__file__}:" in raised.value.exception_formatted
    assert "in out_of_range" in raised.value.exception_formatted


def test_ranks_that_did_not_fail_have_their_values(pair: ProcMesh) -> None:
    later = out_of_range(pair) + 1

    assert inspect(later, gpus=1).tolist() == [1.0]
    with pytest.raises(IndexError):
        fetch_all(later).get(timeout=60)


def test_what_does_not_depend_on_the_failure_goes_on(pair: ProcMesh) -> None:
    with pair.activate():
        x, target = torch.ones(3), torch.zeros(1)
    failed = out_of_range(pair)
    target.add_(failed)

    assert inspect(x + 1).tolist() == [2.0] * 3
    with pytest.raises(IndexError):
        inspect(target)


def test_an_error_of_shapes_is_raised_at_once(pair: ProcMesh) -> None:
    with pair.activate():
        x, y = torch.ones(3, 4), torch.ones(3, 4)

    with pytest.raises(RuntimeError):
        x @ y


def test_memory_is_given_back(pair: ProcMesh) -> None:
    place = place_of(pair)
    with pair.activate():
        kept = torch.ones(3)

    def held() -> int:
        gc.collect()
        place.flush()
        return max(place.engine.workers.count.call().get(timeout=60).values())

    before = held()
    for _ in range(300):
        x = (kept * 2).requires_grad_()
        (x.exp() * x).sum().backward()
    del x

    assert held() <= before
    assert inspect(kept).tolist() == [1.0] * 3
