"""Who owns what, how an end spreads from owner to owned, and how clean-up goes wrong."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import roost.actor
from roost.actor import (
    Actor,
    Channel,
    MeshFailure,
    ProcMesh,
    SupervisionError,
    current_rank,
    endpoint,
    this_host,
)
from roost.config import configured

from .conftest import alive, eventually
from .family import AsyncReplacing, AsyncUntidy, Leaf, Mourner, Nest, Owner, Replacing, Top, Untidy


@pytest.fixture
def own() -> Iterator[Callable[..., ProcMesh]]:
    """Makes processes that a test may kill."""
    made: list[ProcMesh] = []

    def start(**sizes: int) -> ProcMesh:
        with configured(stop_grace_period="1s"):
            made.append(this_host().spawn_procs(sizes or {"gpus": 1}))
        return made[-1]

    yield start
    with configured(stop_grace_period="1s"):
        for mesh in made:
            mesh.stop().get(timeout=20)


@pytest.mark.parametrize("place", ["own processes", "processes of others"])
@pytest.mark.parametrize("end", ["stop", "failure", "kill"])
def test_what_an_actor_owns_ends_with_it(
    own: Any, procs: ProcMesh, failures: list[MeshFailure], place: str, end: str
) -> None:
    given = procs.slice(gpus=slice(2, 4)) if place == "processes of others" else None
    owner: Any = own().spawn("owner", Owner, given)
    leaves = owner.slice(gpus=0).owned.call_one().get(timeout=20)
    pids = leaves.pid.call().get(timeout=20).values()
    if end == "stop":
        owner.stop("no longer needed").get(timeout=20)
    elif end == "failure":
        owner.fail.broadcast("on purpose")
    else:
        os.kill(owner.slice(gpus=0).pid.call_one().get(timeout=20), signal.SIGKILL)
    error = eventually(lambda: leaves.pid.call().exception(timeout=20))
    assert isinstance(error, SupervisionError)
    if given is None:
        eventually(lambda: not alive(pids), "the owner's processes have ended")
    else:
        assert procs.spawn("again", Leaf).pid.call().get(timeout=20).values()[2:] == pids
    if end != "stop":
        eventually(lambda: failures, "the root hears of it")
    assert [failure.mesh_name for failure in failures] == ([] if end == "stop" else ["owner"])


@pytest.mark.parametrize("what", ["actors", "processes"])
def test_an_owner_that_stops_its_mesh_hears_of_no_failure(procs: ProcMesh, what: str) -> None:
    owner = procs.slice(gpus=0).spawn("owner", Owner)
    leaves = owner.owned.call_one().get(timeout=20)
    owner.stop_owned.call_one(what).get(timeout=20)
    with pytest.raises(SupervisionError, match="by its owner"):
        leaves.pid.call().get(timeout=20)
    assert owner.reports.call_one().get(timeout=20) == []
    owner.stop().get(timeout=20)


def test_a_mesh_that_was_sent_to_others_is_a_reference_for_them(procs: ProcMesh) -> None:
    owner = procs.slice(gpus=0).spawn("owner", Owner)
    leaves = owner.owned.call_one().get(timeout=20)
    with pytest.raises(NotImplementedError, match="owned"):
        leaves.stop()
    del leaves
    assert len(owner.owned.call_one().get(timeout=20).pid.call().get(timeout=20)) == 2
    owner.stop().get(timeout=20)


@pytest.mark.parametrize("number", [None, signal.SIGKILL])
def test_nested_processes_all_end_with_the_outermost(
    own: Any, failures: list[MeshFailure], number: int | None
) -> None:
    outer = own()
    pids = outer.spawn("nest", Nest).slice(gpus=0).dig.call_one(3).get(timeout=30)
    assert len(set(pids)) == 4
    if number is None:
        outer.stop().get(timeout=20)
    else:
        os.kill(pids[0], number)
        assert eventually(lambda: failures)[0].signal == number
    eventually(lambda: not alive(pids), "all of them have ended")


@pytest.mark.parametrize("answer", [None, False, 0, "", [], ArithmeticError("in the middle")], ids=repr)
def test_a_failure_climbs_until_somebody_handles_it(
    procs: ProcMesh, failures: list[MeshFailure], answer: Any
) -> None:
    top = procs.slice(gpus=1).spawn("top", Top, answer)
    top.start.call_one().get(timeout=20)
    [(name, report)] = eventually(lambda: top.reports.call_one().get(timeout=20))
    assert name == "middle"
    assert "the first failure" in report
    assert ("in the middle" in report) == isinstance(answer, Exception)
    assert failures == []


@pytest.mark.parametrize("cls", [Replacing, AsyncReplacing])
def test_a_lost_mesh_is_replaced_in_supervise(
    procs: ProcMesh, failures: list[MeshFailure], cls: type[Any]
) -> None:
    owner = procs.slice(gpus=0).spawn("replacing", cls)
    pids = []
    for rounds in range(3):
        pid, _ = eventually(lambda n=rounds: (told := owner.pid.call_one().get(timeout=20))[1] == n and told)
        pids.append(pid)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda n=rounds: owner.pid.call_one().exception(timeout=20) is None)
    assert len(set(pids)) == 3
    assert failures == []
    owner.stop().get(timeout=20)


def test_an_owner_that_does_not_handle_a_failure_is_torn_out_of_its_wait(
    own: Any, failures: list[MeshFailure]
) -> None:
    owner = own().slice(gpus=0).spawn("owner", Owner, None, False)
    leaves = owner.owned.call_one().get(timeout=20)
    waiting = owner.rest_with.call_one(0, 60.0)
    os.kill(leaves.slice(gpus=1).pid.call_one().get(timeout=20), signal.SIGKILL)
    with pytest.raises(SupervisionError, match="did not handle"):
        waiting.get(timeout=20)
    assert [failure.mesh_name for failure in eventually(lambda: failures)] == ["owner"]


def hook_that(work: Callable[[MeshFailure], Any]) -> tuple[Any, list[Any], threading.Event]:
    """A hook that notes what ``work`` gives or raises."""
    told: list[Any] = []
    done = threading.Event()

    def hook(failure: MeshFailure) -> None:
        try:
            told.append(work(failure))
        except Exception as error:
            told.append(error)
        done.set()

    return hook, told, done


def spawn_and_call(failure: MeshFailure) -> int:
    return len(this_host().spawn_procs({"gpus": 2}).spawn("leaves", Leaf).pid.call().get(timeout=20))


def call_the_dead(failure: MeshFailure) -> str:
    return type(failure.mesh.pid.call().exception(timeout=20)).__name__


def stop_and_wait(failure: MeshFailure) -> str:
    this_host().spawn_procs({"gpus": 1}).stop().get(timeout=2)
    return "stopped"


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (spawn_and_call, 2),
        (call_the_dead, "SupervisionError"),
        pytest.param(
            stop_and_wait,
            "stopped",
        ),
    ],
)
def test_the_hook_may_use_meshes(
    own: Any, monkeypatch: pytest.MonkeyPatch, work: Callable[[MeshFailure], Any], expected: Any
) -> None:
    hook, told, done = hook_that(work)
    monkeypatch.setattr(roost.actor, "unhandled_fault_hook", hook)
    own().spawn("leaves", Leaf).kill.broadcast()
    assert done.wait(30)
    assert told == [expected]


KINDS = [Untidy, AsyncUntidy]


@pytest.mark.parametrize("cls", KINDS)
def test_a_cleanup_that_raises_at_a_stop_is_a_failure(
    own: Any, failures: list[MeshFailure], cls: type[Any]
) -> None:
    port, receiver = Channel[str].open()
    mesh = own().spawn("untidy", cls, port, "raise")
    mesh.pid.call().get(timeout=20)
    told = mesh.stop().exception(timeout=20)
    assert receiver.recv().get(timeout=20) == "cleaning up after None"
    assert told is not None or eventually(lambda: failures, within_s=1.0)


@pytest.mark.parametrize("how", ["raise", "exit"])
@pytest.mark.parametrize("cls", KINDS)
def test_a_cleanup_that_raises_after_a_failure_tells_of_both(
    own: Any, failures: list[MeshFailure], cls: type[Any], how: str
) -> None:
    port, receiver = Channel[str].open()
    mesh = own().spawn("untidy", cls, port, how)
    mesh.fail.broadcast()
    assert receiver.recv().get(timeout=20) == "cleaning up after ValueError('the first failure')"
    report = eventually(lambda: failures)[0].report()
    assert "the first failure" in report
    assert "in cleanup" in report


@pytest.mark.parametrize(
    "cls",
    [
        Untidy,
        AsyncUntidy,
    ],
)
def test_a_cleanup_that_hangs_does_not_hold_the_stop(own: Any, cls: type[Any]) -> None:
    with configured(cleanup_timeout="200ms"):
        mesh = own().spawn("untidy", cls, Channel[str].open()[0], "hang")
        mesh.pid.call().get(timeout=20)
        mesh.stop().get(timeout=3)


@pytest.mark.parametrize("end", ["stop", "one failure", "two failures"])
def test_what_an_actor_owns_has_ended_when_it_cleans_up(
    own: Any, failures: list[MeshFailure], end: str
) -> None:
    for _ in range(3):
        port, receiver = Channel[list[int]].open()
        mesh = own().spawn("mourner", Mourner, port)
        pids = mesh.slice(gpus=0).pids.call_one().get(timeout=20)
        assert alive(pids) == pids
        if end == "stop":
            mesh.stop().get(timeout=20)
        else:
            for pid in pids[:: 2 if end == "two failures" else 4]:
                os.kill(pid, signal.SIGKILL)
        assert receiver.recv().get(timeout=20) == []


def test_the_current_rank_of_a_spawn_is_that_of_the_actor(procs: ProcMesh) -> None:
    class Early(Actor):
        def __init__(self) -> None:
            self.rank = dict(current_rank())

        @endpoint
        def at_start(self) -> dict[str, int]:
            return self.rank

    assert procs.spawn("early", Early).at_start.call().get(timeout=20).item(gpus=3) == {"gpus": 3}
