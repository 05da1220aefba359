"""Failures that reach the program itself: the hook, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Program


def test_an_unhandled_failure_ends_the_program_with_a_report(program: Any) -> None:
    run: Program = program(
        """
        import os, time
        from roost.actor import Actor, endpoint, this_host
        class A(Actor):
            @endpoint
            def die(self): os._exit(7)
        a = this_host().spawn_procs({"gpus": 2}).spawn("dying", A)
        a.slice(gpus=1).die.broadcast()
        try:
            time.sleep(60)
        finally:
            print("cleaned up", flush=True)
        """,
        ROOST_UNHANDLED_FAULT_GRACE="100ms",
    )
    status, out, err = run.end()
    assert status != 0
    assert "cleaned up" in out
    assert "unhandled failure" in err
    assert "'dying'" in err
    assert "code 7" in err


def test_a_program_that_handles_its_calls_error_lives(program: Any) -> None:
    run: Program = program(
        """
        import os, time
        from roost.actor import Actor, SupervisionError, endpoint, this_host
        class A(Actor):
            @endpoint
            def die(self): os._exit(7)
        procs = this_host().spawn_procs({"gpus": 1})
        for attempt in range(3):
            try:
                procs.spawn("dying", A).slice(gpus=0).die.call_one().get()
            except SupervisionError:
                procs = this_host().spawn_procs({"gpus": 1})
        time.sleep(0.5)
        print("alive", flush=True)
        """,
        ROOST_UNHANDLED_FAULT_GRACE="200ms",
    )
    assert run.end()[:2] == (0, "alive\n")


def test_a_hook_that_raises_ends_the_program(program: Any) -> None:
    run: Program = program(
        """
        import os, time, roost.actor
        from roost.actor import Actor, endpoint, this_host
        class A(Actor):
            @endpoint
            def die(self): os._exit(7)
        def hook(failure):
            print("hook", failure.mesh_name, flush=True)
            raise RuntimeError("not today")
        roost.actor.unhandled_fault_hook = hook
        this_host().spawn_procs({"gpus": 1}).spawn("dying", A).die.broadcast()
        time.sleep(60)
        """
    )
    status, out, err = run.end()
    assert status != 0
    assert out == "hook dying\n"
    assert "not today" in err


@pytest.mark.parametrize(
    "handling",
    [
        "try: a.ping.call().get()\n    except ValueError: pass",
        "try: a.initialized.get()\n    except ValueError: pass",
        "assert isinstance(a.ping.call().exception(), ValueError)",
    ],
)
def test_a_program_that_handles_the_error_of_a_constructor_lives(program: Any, handling: str) -> None:
    run: Program = program(
        f"""
    import time
    from roost.actor import Actor, endpoint, this_host
    class A(Actor):
        def __init__(self): raise ValueError("no")
        @endpoint
        def ping(self): ...
    a = this_host().spawn_procs({{"gpus": 1}}).spawn("a", A)
    {handling}
    time.sleep(0.5)
    print("alive", flush=True)
    """,
        ROOST_UNHANDLED_FAULT_GRACE="200ms",
    )
    assert run.end()[:2] == (0, "alive\n")


def test_an_owner_that_dies_of_one_failure_ends_its_meshes_though_another_comes(program: Any) -> None:
    run: Program = program(
        """
        import os, time
        import roost.actor
        from roost.actor import Actor, endpoint, this_host
        class Mortal(Actor):
            @endpoint
            def pid(self): return os.getpid()
        class Owner(Actor):
            def __init__(self):
                self.meshes = [this_host().spawn_procs({"g": 1}).spawn("m", Mortal) for _ in range(3)]
            @endpoint
            def pids(self): return [mesh.slice(g=0).pid.call_one().get() for mesh in self.meshes]
        heard = []
        roost.actor.unhandled_fault_hook = heard.append
        for _ in range(3):
            owner = this_host().spawn_procs().spawn("owner", Owner)
            for pid in owner.pids.call_one().get():
                os.kill(pid, 9)
            count = len(heard)
            deadline = time.monotonic() + 20
            while len(heard) == count and time.monotonic() < deadline:
                time.sleep(0.01)
        print(*[failure.mesh_name for failure in heard], flush=True)
        """
    )
    status, out, err = run.end()
    assert (status, out) == (0, "owner owner owner\n"), err
    assert "could not stop" not in err
