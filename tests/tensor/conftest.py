"""Processes for the tests of distributed tensors, forked with torch loaded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="distributed tensors need torch: make .venv/.stamps/torch")

from roost.actor import ProcMesh, this_host


@pytest.fixture(scope="session")
def pair() -> Iterator[ProcMesh]:
    """Two processes."""
    mesh = this_host().spawn_procs({"gpus": 2}, name="pair")
    yield mesh
    mesh.stop().get(timeout=60)


@pytest.fixture(scope="session")
def square() -> Iterator[ProcMesh]:
    """Four processes, two by two."""
    mesh = this_host().spawn_procs({"rows": 2, "cols": 2}, name="square")
    yield mesh
    mesh.stop().get(timeout=60)
