"""Stand-ins for actors and for the launcher of processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from roost.actor import (
    Actor,
    BootstrapCommand,
    Point,
    ProcMesh,
    SpawnError,
    SupervisionError,
    default_bootstrap_cmd,
    endpoint,
    this_host,
    this_proc,
)
from roost.testing import patch_actor, patch_launcher


class Clock(Actor):
    @endpoint
    def now(self) -> str:
        return "real"


class Stopped(Clock):
    @endpoint
    def now(self) -> str:
        return "stopped"


class Tower(Actor):
    @endpoint
    def ask(self) -> str:
        return this_proc().spawn("clock", Clock).now.call_one().get()  # type: ignore[no-any-return]


@pytest.fixture
def procs() -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs({"gpus": 1})
    yield mesh
    mesh.stop().get()


def test_an_actor_is_replaced_here_and_in_other_processes_for_the_time_of_the_block(procs: ProcMesh) -> None:
    with patch_actor(Clock, Stopped):
        assert procs.spawn("clock", Clock).now.call_one().get() == "stopped"
        assert procs.spawn("tower", Tower).ask.call_one().get() == "stopped"
    assert procs.spawn("clock", Clock).now.call_one().get() == "real"


def test_a_launcher_that_fails_for_one_rank_fails_that_rank_only() -> None:
    def launch(name: str, point: Point, command: BootstrapCommand | None) -> BootstrapCommand | None:
        if point["gpus"] == 1:
            raise OSError("no such machine")
        return None

    with patch_launcher(launch):
        mesh = this_host().spawn_procs({"gpus": 2}, name="fragile")
    with pytest.raises(SpawnError, match="no such machine"):
        mesh.initialized.get(timeout=60)
    clocks = mesh.spawn("clocks", Clock)
    assert clocks.slice(gpus=0).now.call_one().get(timeout=60) == "real"
    with pytest.raises(SupervisionError, match="no such machine"):
        clocks.slice(gpus=1).now.call_one().get(timeout=60)
    mesh.stop().get()


def test_a_launcher_may_give_another_command() -> None:
    def launch(name: str, point: Point, command: BootstrapCommand | None) -> BootstrapCommand | None:
        return default_bootstrap_cmd() if point["gpus"] == 0 else None

    with patch_launcher(launch):
        mesh = this_host().spawn_procs({"gpus": 2})
    assert mesh.spawn("clocks", Clock).now.call().get(timeout=60).values() == ["real", "real"]
    mesh.stop().get()
