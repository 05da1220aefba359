"""Failures go to the owner, who decides; what is healthy goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from roost.actor import (
    Actor,
    MeshFailure,
    ProcMesh,
    SupervisionError,
    context,
    current_rank,
    endpoint,
    this_host,
)
from roost.config import configured

from .conftest import alive, eventually
from .mortals import AsyncOwner, Mortal, Owner


@pytest.fixture
def pair(failures: list[MeshFailure]) -> Any:
    procs = this_host().spawn_procs({"gpus": 2}, name="pair")
    yield procs.spawn("mortals", Mortal)
    procs.stop().get(timeout=30)


@pytest.mark.parametrize(
    ("how", "exit_code", "number"),
    [
        ("exit", 13, None),
        ("segfault", None, signal.SIGSEGV),
        ("abort", None, signal.SIGABRT),
        ("kill", None, signal.SIGKILL),
    ],
)
def test_a_dead_process_is_reported_with_all_that_is_known(
    pair: Any, failures: list[MeshFailure], how: str, exit_code: int | None, number: int | None
) -> None:
    pid = pair.slice(gpus=1).pid.call_one().get()
    with pytest.raises(SupervisionError, match="last words") as caught:
        pair.slice(gpus=1).die.call_one(how).get(timeout=20)
    assert "mortals.die" in str(caught.value)
    assert str(pid) in str(caught.value)
    failure = eventually(lambda: failures)[0]
    assert (failure.mesh_name, failure.rank, dict(failure.point)) == ("mortals", 1, {"gpus": 1})
    assert (failure.exit_code, failure.signal, failure.pid) == (exit_code, number, pid)
    assert failure.host
    assert "last words" in failure.stderr_tail
    assert "last words" in failure.report()
    assert failure.mesh == pair
    if number is not None:
        assert signal.Signals(number).name in failure.report()
    assert [one.rank for one in failures] == [1]


def test_a_healthy_slice_of_a_mesh_with_a_dead_rank_goes_on(pair: Any) -> None:
    with pytest.raises(SupervisionError):
        pair.slice(gpus=0).die.call_one("exit").get(timeout=20)
    assert pair.slice(gpus=1).ping.call_one().get(timeout=20) == "pong"
    with pytest.raises(SupervisionError, match="code 13"):
        pair.ping.call().get(timeout=20)
    values = pair.ping.options(partial=True).call().get(timeout=20).values()
    assert isinstance(values[0], SupervisionError)
    assert values[1] == "pong"


def test_calls_in_flight_and_later_ones_end_at_once(pair: Any) -> None:
    doomed = pair.slice(gpus=0)
    pid = doomed.pid.call_one().get()
    waiting = [doomed.rest.call_one(60) for _ in range(20)]
    os.kill(pid, signal.SIGKILL)
    for future in waiting:
        with pytest.raises(SupervisionError, match="SIGKILL"):
            future.get(timeout=20)
    started = time.monotonic()
    with pytest.raises(SupervisionError, match="SIGKILL"):
        doomed.ping.call_one().get(timeout=20)
    assert time.monotonic() - started < 5
    doomed.ping.broadcast()
    streamed = [future.exception(timeout=20) for future in pair.ping.stream()]
    assert sorted(type(error).__name__ for error in streamed) == ["NoneType", "SupervisionError"]


@pytest.mark.parametrize("how", ["broadcast", "explicit", "abort"])
def test_an_error_with_nobody_to_answer_kills_the_actor(
    pair: Any, failures: list[MeshFailure], how: str
) -> None:
    victim = pair.slice(gpus=0)
    if how == "broadcast":
        victim.raise_here.broadcast("unheard")
    elif how == "explicit":
        with pytest.raises(KeyError, match="leaked"):
            victim.leak.call_one().get(timeout=20)
    else:
        victim.abort.call_one("had enough").get(timeout=20)
    failure = eventually(lambda: failures)[0]
    assert failure.mesh_name == "mortals"
    assert {"broadcast": "unheard", "explicit": "leaked", "abort": "had enough"}[how] in failure.report()
    with pytest.raises(SupervisionError, match="has failed"):
        victim.ping.call_one().get(timeout=20)
    assert pair.slice(gpus=1).ping.call_one().get(timeout=20) == "pong"
    again = pair._procs.spawn("again", Mortal)
    assert again.ping.call().get(timeout=20).values() == ["pong", "pong"]


def test_sys_exit_ends_the_actor_not_the_process(pair: Any, failures: list[MeshFailure]) -> None:
    pid = pair.slice(gpus=0).pid.call_one().get()
    with pytest.raises(Exception, match="leaving"):
        pair.slice(gpus=0).die.call_one("sys.exit").get(timeout=20)
    again = pair._procs.slice(gpus=0).spawn("again", Mortal)
    assert again.pid.call_one().get(timeout=20) == pid
    assert "SystemExit" in eventually(lambda: failures)[0].report()


@pytest.mark.parametrize("answer", [True, 1, "yes"])
def test_a_failure_that_the_owner_handles_goes_no_further(
    procs: ProcMesh, failures: list[MeshFailure], answer: Any
) -> None:
    owner = procs.slice(gpus=0).spawn("owner", Owner, answer, 2)
    mortals = owner.mesh.call_one().get(timeout=20)
    with pytest.raises(SupervisionError):
        mortals.slice(gpus=1).die.call_one("kill").get(timeout=20)
    reports = eventually(lambda: owner.reports.call_one().get(timeout=20))
    assert reports[0][:2] == ("mortals", 1)
    assert "SIGKILL" in reports[0][2]
    assert mortals.slice(gpus=0).ping.call_one().get(timeout=20) == "pong"
    assert not failures
    owner.stop().get(timeout=20)


def test_a_failure_that_the_owner_does_not_handle_goes_up(
    procs: ProcMesh, failures: list[MeshFailure]
) -> None:
    owner = procs.slice(gpus=0).spawn("owner", Owner, False, 2)
    mortals = owner.mesh.call_one().get(timeout=20)
    with pytest.raises(SupervisionError):
        mortals.slice(gpus=1).die.call_one("kill").get(timeout=20)
    failure = eventually(lambda: failures)[0]
    assert failure.mesh_name == "owner"
    assert "did not handle" in failure.report()
    assert "SIGKILL" in failure.report()
    with pytest.raises(SupervisionError, match="owner"):
        owner.reports.call_one().get(timeout=20)
    with pytest.raises(SupervisionError):
        mortals.slice(gpus=0).ping.call_one().get(timeout=20)


def test_supervise_that_raises_is_a_new_failure_with_the_first_as_cause(
    procs: ProcMesh, failures: list[MeshFailure]
) -> None:
    owner = procs.slice(gpus=0).spawn("owner", Owner, ArithmeticError("while handling"), 1)
    mortals = owner.mesh.call_one().get(timeout=20)
    with pytest.raises(SupervisionError):
        mortals.slice(gpus=0).die.call_one("kill").get(timeout=20)
    failure = eventually(lambda: failures)[0]
    assert "while handling" in failure.report()
    assert "SIGKILL" in failure.report()
    assert isinstance(failure.cause, ArithmeticError)


def test_an_owner_that_waits_for_the_dead_is_told_and_supervises_meanwhile(procs: ProcMesh) -> None:
    owner = procs.slice(gpus=0).spawn("owner", Owner, True, 2)
    mortals = owner.mesh.call_one().get(timeout=20)
    pid = mortals.slice(gpus=1).pid.call_one().get(timeout=20)
    waiting = owner.wait_for.call_one(0, 3.0)
    os.kill(pid, signal.SIGKILL)
    doomed = owner.wait_for.call_one(1, 60.0)
    assert waiting.get(timeout=20) == "rested"
    assert doomed.get(timeout=20).startswith("told")
    assert owner.reports.call_one().get(timeout=20)[0][1] == 1
    owner.stop().get(timeout=20)


def test_an_async_owner_supervises_while_it_awaits(procs: ProcMesh) -> None:
    owner = procs.slice(gpus=0).spawn("owner", AsyncOwner)
    mortals = owner.mesh.call_one().get(timeout=20)
    pid = mortals.slice(gpus=1).pid.call_one().get(timeout=20)
    waiting = owner.wait_for.call_one(1)
    os.kill(pid, signal.SIGKILL)
    assert "told" in waiting.get(timeout=20)
    eventually(lambda: owner.reports.call_one().get(timeout=20) == [1])
    assert mortals.slice(gpus=0).ping.call_one().get(timeout=20) == "pong"
    owner.stop().get(timeout=20)


def test_failures_of_many_ranks_are_each_reported_once(procs: ProcMesh) -> None:
    owner = procs.slice(gpus=0).spawn("owner", Owner, True, 4)
    mortals = owner.mesh.call_one().get(timeout=20)
    mortals.die.broadcast("kill")
    eventually(lambda: len(owner.reports.call_one().get(timeout=20)) >= 4)
    ranks = [rank for _, rank, _ in owner.reports.call_one().get(timeout=20)]
    assert sorted(ranks) == [0, 1, 2, 3]
    owner.stop().get(timeout=20)


def test_what_an_owner_had_ends_with_its_process(failures: list[MeshFailure]) -> None:
    procs = this_host().spawn_procs({"gpus": 1})
    owner = procs.spawn("owner", Owner, True, 2).slice(gpus=0)
    pids = owner.mesh.call_one().get(timeout=20).pid.call().get(timeout=20).values()
    killer = procs.spawn("killer", Mortal)
    os.kill(killer.slice(gpus=0).pid.call_one().get(timeout=20), signal.SIGKILL)
    eventually(lambda: not alive(pids), "orphans are gone")
    procs.stop().get(timeout=20)


def test_a_reference_holder_is_told_and_not_harmed(pair: Any, procs: ProcMesh) -> None:
    class Holder(Actor):
        @endpoint
        def use(self, other: Any) -> str:
            try:
                return other.ping.call_one().get()  # type: ignore[no-any-return]
            except SupervisionError as error:
                return type(error).__name__

    holder = procs.slice(gpus=0).spawn("holder", Holder)
    assert holder.use.call_one(pair.slice(gpus=0)).get(timeout=20) == "pong"
    with pytest.raises(SupervisionError):
        pair.slice(gpus=0).die.call_one("kill").get(timeout=20)
    assert holder.use.call_one(pair.slice(gpus=0)).get(timeout=20) == "SupervisionError"
    assert holder.use.call_one(pair.slice(gpus=1)).get(timeout=20) == "pong"


def test_waits_in_threads_end_too(pair: Any) -> None:
    pid = pair.slice(gpus=0).pid.call_one().get()
    errors: list[Any] = []
    future = pair.slice(gpus=0).rest.call_one(60)
    threads = [threading.Thread(target=lambda: errors.append(future.exception(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join(20)
    assert len(errors) == 4
    assert all(isinstance(error, SupervisionError) for error in errors)
    assert current_rank().rank == 0


class AsyncNamer(Actor):
    """Notes as whom its ``__supervise__`` runs."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.mortals = this_host().spawn_procs({"gpus": 1}).spawn("mortals", Mortal)

    @endpoint
    async def provoke(self) -> list[str]:
        self.mortals.die.broadcast("kill")
        while not self.names:
            await asyncio.sleep(0.01)
        return self.names

    async def __supervise__(self, failure: MeshFailure) -> bool:
        self.names.append(context().actor_instance.name)
        return True


def test_supervise_runs_as_its_actor_also_beside_an_endpoint(procs: ProcMesh) -> None:
    namer = procs.slice(gpus=0).spawn("namer", AsyncNamer)
    assert namer.provoke.call_one().get(timeout=20)[0] == "namer"
    namer.stop().get(timeout=20)


def test_a_frozen_process_counts_as_dead(failures: list[MeshFailure]) -> None:
    with configured(frozen_timeout="1s"):
        procs = this_host().spawn_procs({"gpus": 2})
        mesh = procs.spawn("mortals", Mortal)
        pids = mesh.pid.call().get(timeout=20)
        waiting = mesh.slice(gpus=1).ping.call_one()
        waiting.get(timeout=20)
        os.kill(pids.item(gpus=1), signal.SIGSTOP)
        eventually(lambda: psutil.Process(pids.item(gpus=1)).status() == psutil.STATUS_STOPPED)
        with pytest.raises(SupervisionError, match="frozen"):
            mesh.slice(gpus=1).ping.call_one().get(timeout=30)
        assert "frozen" in eventually(lambda: failures)[0].report()
        assert mesh.slice(gpus=0).ping.call_one().get(timeout=20) == "pong"
        # One that goes on in time is none.
        os.kill(pids.item(gpus=0), signal.SIGSTOP)
        os.kill(pids.item(gpus=0), signal.SIGCONT)
        assert mesh.slice(gpus=0).ping.call_one().get(timeout=20) == "pong"
        procs.stop().get(timeout=20)


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup of 100 MiB, where this machine lets us make one."""
    root = Path("/sys/fs/cgroup")
    unified = (root / "cgroup.controllers").exists()
    group = root / "roost-test" if unified else root / "memory" / "roost-test"
    limit = "memory.max" if unified else "memory.limit_in_bytes"
    try:
        group.mkdir()
        if not (group / limit).exists():
            raise OSError("it has no limit of memory")
        (group / limit).write_text(str(100 << 20))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no cgroup of our own: {error}")
    yield group
    with contextlib.suppress(OSError):
        group.rmdir()


class Hungry(Mortal):
    @endpoint
    def eat(self) -> int:
        return len(bytearray(b"x" * (400 << 20)))


def test_a_process_that_the_kernel_killed_for_memory_is_told_as_such(
    failures: list[MeshFailure], small_cgroup: Path
) -> None:
    procs = this_host().spawn_procs({"gpus": 1})
    hungry = procs.spawn("hungry", Hungry).slice(gpus=0)
    (small_cgroup / "cgroup.procs").write_text(str(hungry.pid.call_one().get(timeout=20)))
    with pytest.raises(SupervisionError, match=r"lack of memory \(limit 100 MiB\)"):
        hungry.eat.call_one().get(timeout=30)
    procs.stop().get(timeout=20)


@pytest.mark.parametrize("how", ["abort", "kill"])
def test_choose_leaves_out_ranks_that_have_failed(failures: list[MeshFailure], how: str) -> None:
    procs = this_host().spawn_procs({"gpus": 3})
    mortals = procs.spawn("mortals", Mortal)
    mortal = mortals.slice(gpus=1)
    if how == "abort":  # the actor alone fails, its process lives
        with contextlib.suppress(SupervisionError):
            mortal.abort.call_one("tired").get()
    else:
        with pytest.raises(SupervisionError):
            mortal.die.call_one("kill").get()
    with pytest.raises(SupervisionError):
        mortal.ping.call_one().get()
    lost = 0
    for _ in range(100):
        try:
            assert mortals.ping.choose().get() == "pong"
        except SupervisionError:
            lost += 1
    assert lost <= 2, "the first call finds out, or the next; those after them go to others"
    for rank in (0, 2):
        with contextlib.suppress(SupervisionError):
            mortals.slice(gpus=rank).die.call_one("kill").get()
    for _ in range(5):  # with all of them gone it is an error, and no wait
        with pytest.raises(SupervisionError):
            mortals.ping.choose().get(timeout=30)
    assert {failure.mesh_name for failure in failures} == {"mortals"}
    procs.stop().get()
