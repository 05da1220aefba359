"""Every wait ends, in a value or in an exception, when what it waits for is gone."""

from __future__ import annotations

import asyncio
import operator
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from roost.actor import (
    Accumulator,
    Actor,
    DeadlockError,
    MeshFailure,
    ProcMesh,
    SpawnError,
    SupervisionError,
    endpoint,
    this_host,
)
from roost.config import configured

from .conftest import eventually
from .mortals import Holder, Mortal
from .servants import AsyncServant

pytestmark = pytest.mark.usefixtures("failures")
BOUND_S = 15.0
"""Far more than anything here takes, and far less than the waits that would not end."""


@pytest.fixture
def doomed() -> Iterator[ProcMesh]:
    """Two processes for a test that kills one of them."""
    procs = this_host().spawn_procs({"gpus": 2}, name="doomed")
    yield procs
    with configured(stop_grace_period="500ms"):
        procs.stop().get(timeout=BOUND_S)


def awaited(future: Any) -> Any:
    async def wait() -> Any:
        return await future

    return asyncio.run(wait())


def as_asyncio(future: Any) -> Any:
    async def wait() -> Any:
        return await future.as_asyncio()

    return asyncio.run(wait())


def by_callback(future: Any) -> Any:
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    assert done.wait(BOUND_S)
    return future.get(timeout=0)


WAYS: dict[str, Callable[[Any], Any]] = {
    "get": lambda future: future.get(),
    "get with a timeout": lambda future: future.get(timeout=60),
    "await": awaited,
    "as_asyncio": as_asyncio,
    "callback": by_callback,
}
CALLS: dict[str, Callable[[Any], Any]] = {
    "call_one": lambda mesh: mesh.slice(gpus=1).rest.call_one(60),
    "call": lambda mesh: mesh.slice(gpus=slice(1, 2)).rest.call(60),
    "stream": lambda mesh: next(iter(mesh.slice(gpus=slice(1, 2)).rest.stream(60))),
    "accumulate": lambda mesh: Accumulator(mesh.slice(gpus=slice(1, 2)).rest, 0, operator.add).accumulate(60),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("call", CALLS)
def test_a_wait_for_a_process_that_is_killed_ends(doomed: ProcMesh, call: str, how: str) -> None:
    mesh = doomed.spawn("mortals", Mortal)
    pid = mesh.slice(gpus=1).pid.call_one().get(timeout=BOUND_S)
    threading.Timer(0.1, os.kill, (pid, signal.SIGKILL)).start()
    started = time.monotonic()
    with pytest.raises(SupervisionError, match="SIGKILL"):
        WAYS[how](CALLS[call](mesh))
    assert time.monotonic() - started < BOUND_S
    assert mesh.slice(gpus=0).ping.call_one().get(timeout=BOUND_S) == "pong"


@pytest.mark.timeout(60)
def test_a_call_of_which_one_rank_dies_ends_though_others_go_on(doomed: ProcMesh) -> None:
    mesh = doomed.spawn("mortals", Mortal)
    pid = mesh.slice(gpus=1).pid.call_one().get(timeout=BOUND_S)
    call = mesh.rest.call(2.0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SupervisionError, match="SIGKILL"):
        call.get()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("when", ["bootstrap", "init"])
def test_what_never_gets_ready_ends_when_its_process_does(when: str) -> None:
    class Endless(Actor):
        def __init__(self) -> None:
            threading.Event().wait()

        @endpoint
        def ping(self) -> None: ...

    bootstrap = (lambda: threading.Event().wait()) if when == "bootstrap" else None
    with configured(stop_grace_period="300ms"):
        procs = this_host().spawn_procs({"gpus": 2}, bootstrap=bootstrap)
        mesh = procs.spawn("endless", Endless)
        waiting = [mesh.initialized, mesh.ping.call(), mesh.slice(gpus=0).ping.call_one()]
        if when == "bootstrap":
            waiting.append(procs.initialized)
        with pytest.raises(TimeoutError):
            waiting[0].get(timeout=0.2)
        procs.stop("took too long").get(timeout=BOUND_S)
    for future in waiting:
        with pytest.raises((SupervisionError, SpawnError)):
            future.get(timeout=BOUND_S)


@pytest.mark.timeout(60)
def test_stops_of_what_is_dead_already_end(doomed: ProcMesh) -> None:
    mesh = doomed.spawn("mortals", Mortal)
    mesh.die.broadcast("kill")
    eventually(lambda: isinstance(mesh.ping.call().exception(timeout=BOUND_S), SupervisionError))
    mesh.stop().get(timeout=BOUND_S)
    doomed.stop().get(timeout=BOUND_S)
    doomed.stop().get(timeout=BOUND_S)


@pytest.mark.timeout(60)
def test_spawns_on_a_mesh_with_a_dead_rank_end(doomed: ProcMesh) -> None:
    first = doomed.spawn("mortals", Mortal)
    with pytest.raises(SupervisionError):
        first.slice(gpus=1).die.call_one("kill").get(timeout=BOUND_S)
    second = doomed.spawn("again", Mortal)
    with pytest.raises((SupervisionError, SpawnError)):
        second.initialized.get(timeout=BOUND_S)
    with pytest.raises(SupervisionError):
        second.ping.call().get(timeout=BOUND_S)
    assert second.slice(gpus=0).ping.call_one().get(timeout=BOUND_S) == "pong"
    assert doomed.slice(gpus=0).spawn("third", Mortal).ping.call_one().get(timeout=BOUND_S) == "pong"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ending", ["stop", "death"])
def test_the_caller_of_a_port_that_ended_with_its_actor_is_told(doomed: ProcMesh, ending: str) -> None:
    mesh = doomed.spawn("holders", Holder)
    one = mesh.slice(gpus=0)
    future = one.keep.call_one()
    one.take.call_one(None).get(timeout=BOUND_S)
    if ending == "stop":
        mesh.stop("no answers").get(timeout=BOUND_S)
    else:
        one.die.broadcast()
    with pytest.raises(SupervisionError):
        future.get(timeout=BOUND_S)


@pytest.mark.timeout(60)
def test_the_caller_of_a_port_that_was_dropped_is_told(procs: ProcMesh) -> None:
    holder = procs.slice(gpus=0).spawn("holder", Holder)
    with pytest.raises(Exception, match=r"drop|unanswered|response port"):
        holder.drop.call_one().get(timeout=3)
    future = holder.keep.call_one()
    assert holder.forget.call_one().get(timeout=BOUND_S) == 1
    with pytest.raises(Exception, match=r"drop|unanswered|response port"):
        future.get(timeout=3)


@pytest.mark.xfail(strict=True, reason="the relay of the port lives on")
@pytest.mark.timeout(60)
def test_the_caller_of_a_port_whose_last_holder_dies_is_told(doomed: ProcMesh) -> None:
    mesh = doomed.spawn("holders", Holder)
    future = mesh.slice(gpus=0).hand_on.call_one(mesh.slice(gpus=1))
    mesh.slice(gpus=0).take.call_one(None).get(timeout=BOUND_S)  # it has been handed on
    mesh.slice(gpus=1).die.broadcast()
    with pytest.raises(SupervisionError):
        future.get(timeout=3)


@pytest.mark.timeout(60)
def test_an_actor_that_waits_for_a_dead_one_goes_on(doomed: ProcMesh, procs: ProcMesh) -> None:
    asking = procs.slice(gpus=0).spawn("asking", Holder)
    holder = doomed.spawn("holder", Holder).slice(gpus=1)
    future = asking.ask.call_one(holder)
    eventually(lambda: holder.forget.call_one().exception(timeout=BOUND_S) is None)
    holder.die.broadcast()
    assert future.get(timeout=BOUND_S) in ("SupervisionError", "ActorError[SupervisionError]", "answered")


@pytest.mark.timeout(60)
def test_many_waits_of_many_threads_all_end(doomed: ProcMesh, failures: list[MeshFailure]) -> None:
    mesh = doomed.spawn("mortals", Mortal)
    one = mesh.slice(gpus=1)
    pid = one.pid.call_one().get(timeout=BOUND_S)
    ends: list[Any] = []

    def wait(number: int) -> None:
        future = one.rest.call_one(60)
        try:
            ends.append(awaited(future) if number % 2 else future.get())
        except SupervisionError as error:
            ends.append(error)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join(BOUND_S)
    assert len(ends) == 20
    assert all(isinstance(end, SupervisionError) for end in ends)
    eventually(lambda: failures)


@pytest.mark.xfail(strict=True, reason="calls with explicit ports are no edges")
@pytest.mark.timeout(60)
def test_a_cycle_through_explicit_ports_is_found(doomed: ProcMesh) -> None:
    mesh = doomed.spawn("holders", Holder)
    asked = [mesh.slice(gpus=a).ask.call_one(mesh.slice(gpus=1 - a)) for a in range(2)]
    errors = [future.exception(timeout=5) for future in asked]
    assert any(isinstance(error, DeadlockError) for error in errors)


@pytest.mark.timeout(90)
def test_processes_that_die_while_they_first_meet_fail_only_each_other() -> None:
    for rounds in range(5):
        procs = this_host().spawn_procs({"gpus": 4})
        mesh = procs.spawn("servants", AsyncServant)
        killers = procs.spawn("mortals", Mortal)
        doomed = rounds % 4
        asked = {
            (a, b): mesh.slice(gpus=a).ask.call_one(mesh.slice(gpus=b), 5)
            for a in range(4)
            for b in range(4)
            if a != b
        }
        killers.slice(gpus=doomed).die.broadcast("kill")
        for (a, b), future in asked.items():
            error = future.exception(timeout=BOUND_S)
            assert isinstance(error, SupervisionError) or (error is None), (a, b)
            assert error is None or doomed in (a, b), (a, b)
        procs.stop().get(timeout=BOUND_S)
