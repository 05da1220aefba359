"""From spawn to stop: owners, clean-up, processes, and what is left behind (nothing)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from roost.actor import (
    Actor,
    ActorError,
    Channel,
    MeshFailure,
    ProcMesh,
    SpawnError,
    SupervisionError,
    default_bootstrap_cmd,
    endpoint,
    get_or_spawn_controller,
    this_host,
)
from roost.config import configured

from .conftest import Program, alive, eventually
from .residents import AsyncTidy, Plain, Tidy, note_bootstrap, note_later


def test_stop_lets_queued_messages_be_handled_first_and_may_be_repeated(procs: ProcMesh) -> None:
    port, receiver = Channel[str].open()
    mesh = procs.slice(gpus=0).spawn("tidy", Tidy, port, "a")
    queued = [mesh.ping.call_one(0.1) for _ in range(3)]
    stopped = mesh.stop("for the test")
    stopped.get(timeout=20)
    mesh.stop("again").get(timeout=20)
    assert [future.get(timeout=20) for future in queued] == ["pong"] * 3
    expected = ["a handled"] * 3 + ["a cleaned up NoneType"]
    assert [receiver.recv().get(timeout=20) for _ in range(4)] == expected


def test_calls_after_stop_say_why(procs: ProcMesh) -> None:
    mesh = procs.spawn("plain", Plain)
    mesh.stop("for the test").get(timeout=20)
    for call in (mesh.ping.call, mesh.slice(gpus=1).ping.call_one):
        with pytest.raises(SupervisionError, match="stopped: for the test"):
            call().get(timeout=20)
    mesh.ping.broadcast()
    with pytest.raises(SupervisionError, match="stopped"):
        next(iter(mesh.ping.stream())).get(timeout=20)


def test_only_the_owners_handle_stops(procs: ProcMesh) -> None:
    mesh = procs.spawn("plain", Plain)
    for other in (mesh.slice(gpus=0), procs.slice(gpus=0)):
        with pytest.raises(NotImplementedError, match="requires an owned"):
            other.stop()
    with pytest.raises(RuntimeError, match="reference instead of owned"):
        this_host().shutdown()


def test_what_an_actor_owns_ends_before_it(procs: ProcMesh) -> None:
    port, receiver = Channel[str].open()
    mesh = procs.slice(gpus=0).spawn("tidy", Tidy, port, "a", 2)
    mesh.stop().get(timeout=20)
    assert [receiver.recv().get(timeout=20) for _ in range(3)] == [
        "a.child.child cleaned up NoneType",
        "a.child cleaned up NoneType",
        "a cleaned up NoneType",
    ]


def test_cleanup_hears_of_the_error(procs: ProcMesh, failures: list[MeshFailure]) -> None:
    port, receiver = Channel[str].open()
    mesh = procs.slice(gpus=0).spawn("tidy", Tidy, port, "a")
    mesh.fail.broadcast()
    assert receiver.recv().get(timeout=20) == "a cleaned up ValueError"
    assert "on purpose" in eventually(lambda: failures)[0].report()


def test_async_cleanup_runs(procs: ProcMesh) -> None:
    port, receiver = Channel[str].open()
    mesh = procs.slice(gpus=0).spawn("tidy", AsyncTidy, port)
    mesh.ping.call_one().get(timeout=20)
    mesh.stop().get(timeout=20)
    assert receiver.recv().get(timeout=20) == "cleaned up NoneType"


def test_cleanup_must_be_of_the_endpoints_kind(procs: ProcMesh) -> None:
    class Wrong(Actor):
        @endpoint
        def ping(self) -> None: ...

        async def __cleanup__(self, exc: BaseException | None) -> None: ...

    with pytest.raises(ValueError, match="__cleanup__ is async def"):
        procs.spawn("wrong", Wrong)


def test_a_cleanup_that_raises_is_a_failure(procs: ProcMesh, failures: list[MeshFailure]) -> None:
    class Untidy(Actor):
        @endpoint
        def ping(self) -> None: ...

        def __cleanup__(self, exc: BaseException | None) -> None:
            raise ArithmeticError("in cleanup")

    mesh = procs.slice(gpus=0).spawn("untidy", Untidy)
    mesh.ping.call_one().get(timeout=20)
    mesh.stop().get(timeout=20)
    assert "in cleanup" in eventually(lambda: failures)[0].report()


def test_a_cleanup_that_takes_too_long_does_not_hold_the_stop(procs: ProcMesh) -> None:
    from roost.config import configured

    class Slow(Actor):
        @endpoint
        async def ping(self) -> None: ...

        async def __cleanup__(self, exc: BaseException | None) -> None:
            await asyncio.sleep(60)

    with configured(cleanup_timeout="200ms"):
        own = this_host().spawn_procs({"gpus": 1})
        mesh = own.spawn("slow", Slow)
        mesh.ping.call().get(timeout=20)
        mesh.stop().get(timeout=20)
        own.stop().get(timeout=20)


def test_an_actor_may_stop_itself(procs: ProcMesh, failures: list[MeshFailure]) -> None:
    port, receiver = Channel[str].open()
    mesh = procs.slice(gpus=0).spawn("tidy", Tidy, port, "a")
    mesh.leave.call_one().get(timeout=20)
    assert receiver.recv().get(timeout=20) == "a cleaned up NoneType"
    with pytest.raises(SupervisionError, match="stopped: had enough"):
        mesh.ping.call_one().get(timeout=20)
    assert not failures


def test_stopping_processes_stops_their_actors_and_ends_them() -> None:
    port, receiver = Channel[str].open()
    own = this_host().spawn_procs({"gpus": 2})
    pids = [told["pid"] for told in own.spawn("plain", Plain).about.call().get(timeout=20).values()]
    own.slice(gpus=0).spawn("tidy", Tidy, port, "a").ping.call_one().get(timeout=20)
    assert receiver.recv().get(timeout=20) == "a handled"
    own.stop("done").get(timeout=30)
    assert receiver.recv().get(timeout=20) == "a cleaned up NoneType"
    eventually(lambda: not alive(pids))
    with pytest.raises(SupervisionError, match="already been stopped: done"):
        own.spawn("late", Plain)
    own.stop().get(timeout=20)


def test_a_process_that_does_not_end_is_killed() -> None:
    from roost.config import configured

    with configured(stop_grace_period="300ms"):
        own = this_host().spawn_procs({"gpus": 1})
        mesh = own.spawn("plain", Plain)
        pid = mesh.about.call().get(timeout=20).values()[0]["pid"]
        mesh.rest.broadcast(60)
        own.stop().get(timeout=20)
    assert not psutil.pid_exists(pid)


def test_initialized_waits_and_raises(procs: ProcMesh, failures: list[MeshFailure]) -> None:
    own = this_host().spawn_procs({"gpus": 1})
    own.initialized.get(timeout=20)
    assert own.spawn("plain", Plain).initialized.get(timeout=20) is None
    assert this_host().initialized.get(timeout=20)
    own.stop().get(timeout=20)


@pytest.mark.parametrize("bootstrap", [note_bootstrap, note_later])
def test_a_bootstrap_runs_before_any_actor(bootstrap: Any) -> None:
    own = this_host().spawn_procs({"gpus": 2}, bootstrap=functools.partial(bootstrap, "here"))
    assert own.spawn("plain", Plain).environment.call("NOTED").get(timeout=20).values() == ["here"] * 2
    own.stop().get(timeout=20)


def test_a_bootstrap_that_raises_fails_the_mesh(failures: list[MeshFailure]) -> None:
    def broken() -> None:
        raise LookupError("no such device")

    own = this_host().spawn_procs({"gpus": 2}, bootstrap=broken)
    with pytest.raises(LookupError, match="no such device") as caught:
        own.initialized.get(timeout=20)
    assert isinstance(caught.value, ActorError)
    with pytest.raises(LookupError) as both:
        own.spawn("plain", Plain).ping.call().get(timeout=20)
    assert "no such device" in str(both.value)
    with pytest.raises(LookupError, match="no such device"):
        own.initialized.get(timeout=20)
    failure = eventually(lambda: failures)[0]
    assert isinstance(failure.cause, LookupError)
    assert failure.mesh == own
    own.stop().get(timeout=20)


def test_environment_path_and_place_are_those_of_the_program_at_the_spawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FROM_PARENT", "yes")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    own = this_host().spawn_procs(
        {"gpus": 2}, env=lambda point: {"MY_RANK": str(point["gpus"])}, name="placed"
    )
    mesh = own.spawn("plain", Plain)
    assert mesh.environment.call("FROM_PARENT").get(timeout=20).values() == ["yes", "yes"]
    assert mesh.environment.call("MY_RANK").get(timeout=20).values() == ["0", "1"]
    told = mesh.slice(gpus=0).about.call_one().get(timeout=20)
    assert str(tmp_path) in told["path"]
    assert told["cwd"] == str(tmp_path)
    own.stop().get(timeout=20)


def test_processes_are_bound_as_asked(failures: list[MeshFailure]) -> None:
    with pytest.raises(ValueError, match="needs one for each of 2"):
        this_host().spawn_procs({"gpus": 2}, proc_bind=[{"cpus": "0"}])
    with pytest.raises(ValueError, match="the keys are"):
        this_host().spawn_procs({"gpus": 1}, proc_bind=[{"cores": "0"}])
    own = this_host().spawn_procs({"gpus": 1}, proc_bind=[{"cpus": "0"}])
    assert own.spawn("plain", Plain).about.call().get(timeout=20).values()[0]["cpus"] == [0]
    own.stop().get(timeout=20)
    bad = this_host().spawn_procs({"gpus": 1}, proc_bind=[{"cpus": "4095"}])
    with pytest.raises(SpawnError):
        bad.initialized.get(timeout=20)
    bad.stop().get(timeout=20)


def test_a_command_starts_processes_with_its_variables() -> None:
    command = default_bootstrap_cmd().with_env({"FROM_COMMAND": "1", "HOME": None})
    own = this_host().spawn_procs({"gpus": 2}, bootstrap_command=command)
    mesh = own.spawn("plain", Plain)
    assert mesh.environment.call("FROM_COMMAND").get(timeout=30).values() == ["1", "1"]
    assert mesh.environment.call("HOME").get(timeout=30).values() == [None, None]
    own.stop().get(timeout=20)
    own = this_host().spawn_procs(
        {"gpus": 2},
        bootstrap_command=lambda point: default_bootstrap_cmd().with_env({"AT": str(point["gpus"])}),
    )
    assert own.spawn("plain", Plain).environment.call("AT").get(timeout=30).values() == ["0", "1"]
    own.stop().get(timeout=20)


def test_a_command_that_is_not_there_fails_the_spawn(failures: list[MeshFailure]) -> None:
    command = default_bootstrap_cmd()
    command.program = "/nowhere/python"
    own = this_host().spawn_procs({"gpus": 1}, bootstrap_command=command)
    with pytest.raises(SpawnError, match=r"could not be started.*nowhere"):
        own.initialized.get(timeout=20)
    assert "nowhere" in eventually(lambda: failures)[0].report()
    own.stop().get(timeout=20)


def test_another_interpreter() -> None:
    own = this_host().with_python_executable(sys.executable).spawn_procs({"gpus": 1})
    assert own.spawn("plain", Plain).ping.call().get(timeout=30).values() == ["pong"]
    own.stop().get(timeout=20)


class Single(Actor):
    def __init__(self, start: int) -> None:
        self.value = start

    @endpoint
    def next(self) -> int:
        self.value += 1
        return self.value


class Asks(Actor):
    @endpoint
    def next(self) -> int:
        single = get_or_spawn_controller("single", Single, 100).get()
        return single.next.call_one().get()  # type: ignore[no-any-return]


def test_a_controller_is_one_for_everyone(procs: ProcMesh) -> None:
    single = get_or_spawn_controller("single", Single, 10).get(timeout=20)
    assert single.next.call_one().get(timeout=20) == 11
    assert sorted(procs.spawn("asks", Asks).next.call().get(timeout=20).values()) == [12, 13, 14, 15]
    assert get_or_spawn_controller("single", Single, 0).get(timeout=20) == single


PROGRAM = """
    import os, sys, time, signal
    from roost.actor import Actor, endpoint, this_host, this_proc
    class Inner(Actor):
        @endpoint
        def ping(self): return os.getpid()
    class Outer(Actor):
        def __init__(self): self.inner = this_host().spawn_procs({"gpus": 2}).spawn("inner", Inner)
        @endpoint
        def pids(self): return [os.getpid(), *self.inner.ping.call().get().values()]
        @endpoint
        def block(self): time.sleep(1000)
    import numpy as np
    outer = this_host().spawn_procs({"gpus": 2}).spawn("outer", Outer)
    print(*[pid for pids in outer.pids.call().get().values() for pid in pids], flush=True)
    future = outer.block.call()
"""


@pytest.mark.parametrize(
    ("ending", "number"),
    [
        ("future.get()", signal.SIGINT),
        ("future.get()", signal.SIGKILL),
        ("future.get()", signal.SIGTERM),
        ("import asyncio\n    async def main(): await future\n    asyncio.run(main())", signal.SIGINT),
        ("", None),
        ("raise SystemExit(3)", None),
        ("os._exit(4)", None),
        ("1 / 0", None),
    ],
)
def test_however_a_program_ends_nothing_is_left(program: Any, ending: str, number: int | None) -> None:
    run: Program = program(PROGRAM + "    " + ending + "\n", ROOST_STOP_GRACE_PERIOD="500ms")
    pids = [int(pid) for pid in run.line().split()]
    assert len(pids) == 6
    everyone = [*pids, *(child.pid for child in psutil.Process(run.process.pid).children())]
    shared: list[str] = []
    for pid in everyone:
        with contextlib.suppress(psutil.Error):  # it may be ending
            shared += [entry.path for entry in psutil.Process(pid).memory_maps()]
    if number is not None:
        run.process.send_signal(number)
    status, _, err = run.end(30)
    expected = {"": 0, "raise SystemExit(3)": 3, "os._exit(4)": 4, "1 / 0": 1}
    assert status == expected.get(ending, -number if number else 0), err
    eventually(lambda: not alive(everyone), "no process is left")
    assert [path for path in shared if path.startswith("/dev/shm/") and os.path.exists(path)] == []


@pytest.mark.parametrize("program", ["/bin/true", "/bin/sleep"])
def test_a_command_that_is_no_worker_fails_the_spawn_and_not_the_host(
    program: str, failures: list[MeshFailure]
) -> None:
    command = default_bootstrap_cmd().with_env({"PADDING": "x" * 100_000})
    command.program, command.args = program, ["60"]
    with configured(mesh_proc_spawn_max_idle="1s"):
        own = this_host().spawn_procs({"gpus": 2}, bootstrap_command=command)
        with pytest.raises(SpawnError, match=r"exited with code 0|had not reported"):
            own.initialized.get(timeout=30)
    good = this_host().spawn_procs({"gpus": 1})
    assert good.spawn("plain", Plain).ping.call().get(timeout=20).values() == ["pong"]
    good.stop().get(timeout=20)
    own.stop().get(timeout=20)
