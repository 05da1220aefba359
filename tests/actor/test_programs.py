"""Whole programs: classes of `__main__`, threads and loops as users write them, and how programs end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest

from roost.actor import shutdown_context

from .conftest import Program, alive, eventually


def check(run: Program, *lines: str) -> str:
    """Waits for a good end, and for these lines of output in this order; returns stderr."""
    status, out, err = run.end()
    assert status == 0, err
    assert out.splitlines() == list(lines), err
    return err


def test_classes_of_main_are_themselves_on_both_sides(program: Any) -> None:
    check(
        program(
            """
            import dataclasses, enum
            from roost.actor import Actor, ActorError, endpoint, this_host

            class Refused(Exception):
                def __init__(self, code, *, why):
                    super().__init__(code)
                    self.why = why

            @dataclasses.dataclass
            class Item:
                size: int

            class Colour(enum.Enum):
                RED = 1

            class Shop(Actor):
                @endpoint
                def refuse(self, item):
                    assert isinstance(item, Item)
                    raise Refused(item.size, why="closed")
                @endpoint
                def paint(self, colour):
                    assert colour is Colour.RED
                    return Item(3), Colour.RED, Shop

            shop = this_host().spawn_procs({"gpus": 2}).spawn("shop", Shop)
            try:
                shop.slice(gpus=0).refuse.call_one(Item(7)).get()
            except Refused as error:
                print(error.why, error.args, isinstance(error, ActorError))
            try:
                shop.refuse.call(Item(7)).get()
            except* Refused as group:
                print([one.rank["gpus"] for one in group.exceptions])
            for _, (item, colour, cls) in shop.paint.call(Colour.RED).get():
                print(item == Item(3), colour is Colour.RED, cls is Shop)
            """
        ),
        "closed (7,) True",
        "[0, 1]",
        "True True True",
        "True True True",
    )


@pytest.mark.parametrize("how", ["-c", "-m", "stdin"])
def test_a_program_is_started_in_any_way(tmp_path: Path, how: str) -> None:
    source = textwrap.dedent(
        """
        from roost.actor import Actor, endpoint, this_host
        class Greeter(Actor):
            @endpoint
            def greet(self, name): return f"hello {name}"
        if __name__ == "__main__":
            greeter = this_host().spawn_procs().spawn("greeter", Greeter)
            print(greeter.greet.call_one("you").get())
        """
    )
    (tmp_path / "greeting.py").write_text(source)
    words = {"-c": ["-c", source], "-m": ["-m", "greeting"], "stdin": ["-"]}[how]
    done = subprocess.run(
        [sys.executable, *words],
        input=source if how == "stdin" else None,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "hello you\n"), done.stderr


def test_modules_beside_the_program_and_added_paths_are_found_by_workers(
    program: Any, tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    (tmp_path / "added").mkdir()
    (tmp_path / "added" / "further.py").write_text("NAME = 'further'\n")
    check(
        program(
            f"""
            import sys
            from roost.actor import Actor, default_bootstrap_cmd, endpoint, this_host
            sys.path.append({str(tmp_path / "added")!r})
            class Importer(Actor):
                @endpoint
                def names(self):
                    import beside, further
                    return beside.NAME, further.NAME
            for command in (None, default_bootstrap_cmd()):
                procs = this_host().spawn_procs(bootstrap_command=command)
                print(procs.spawn("importer", Importer).names.call_one().get())
            """
        ),
        *["('beside', 'further')"] * 2,
    )


def test_first_use_may_be_in_a_thread_or_a_loop(program: Any) -> None:
    check(
        program(
            """
            import asyncio, sys, threading
            from roost.actor import Actor, endpoint, this_host
            class A(Actor):
                @endpoint
                def ping(self): return "pong"
            async def main():
                async with this_host().spawn_procs({"gpus": 2}) as procs:
                    a = procs.spawn("a", A)
                    await a.initialized
                    print((await a.ping.call()).values())
                    async for future in a.ping.stream():
                        print(await future)
            thread = threading.Thread(target=lambda: asyncio.run(main()))
            thread.start()
            thread.join()
            """
        ),
        "['pong', 'pong']",
        "pong",
        "pong",
    )


def test_many_threads_use_it_first_at_the_same_time(program: Any) -> None:
    check(
        program(
            """
            import threading
            from roost.actor import Actor, context, endpoint, this_host
            class A(Actor):
                @endpoint
                def ping(self): return "pong"
            found = []
            gate = threading.Barrier(8)
            def work():
                gate.wait()
                mesh = this_host().spawn_procs({"gpus": 1}).spawn("a", A)
                found.append((str(context().actor_instance.actor_id), *mesh.ping.call().get().values()))
            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            print(len(found), len(set(found)))
            """
        ),
        "8 1",
    )


def test_multiprocessing_and_subprocesses_work_beside_it(program: Any) -> None:
    check(
        program(
            """
            import multiprocessing, subprocess, sys
            from concurrent.futures import ProcessPoolExecutor
            from roost.actor import Actor, endpoint, this_host
            def square(x): return x * x
            class A(Actor):
                @endpoint
                def use(self, method):
                    context = multiprocessing.get_context(method)
                    with ProcessPoolExecutor(2, mp_context=context) as pool:
                        return list(pool.map(abs, [-1, -2]))
                @endpoint
                def run(self): return subprocess.check_output(["echo", "hi"], text=True)
            if __name__ == "__main__":
                a = this_host().spawn_procs().spawn("a", A)
                print(a.run.call_one().get().strip())
                for method in ("fork", "spawn", "forkserver"):
                    print(a.use.call_one(method).get(timeout=50))
                with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
                    print(list(pool.map(square, [1, 2])))
                print(a.run.call_one().get().strip())
            """
        ),
        "hi",
        *["[1, 2]"] * 3,
        "[1, 4]",
        "hi",
    )


ENDINGS = {
    "while processes start": """
this_host().spawn_procs({'gpus': 4})
print('ready', flush=True); time.sleep(60)""",
    "while a bootstrap runs": """
this_host().spawn_procs({'gpus': 2}, bootstrap=lambda: time.sleep(60))
print('ready', flush=True); time.sleep(60)""",
    "while an actor is made": """
this_host().spawn_procs({'gpus': 2}).spawn('slow', Slow, 60)
print('ready', flush=True); time.sleep(60)""",
    "while a call is waited for": """
slow = this_host().spawn_procs({'gpus': 2}).spawn('slow', Slow)
slow.rest.call(0).get(); print('ready', flush=True); slow.rest.call(60).get()""",
    "while a C call holds the interpreter": """
slow = this_host().spawn_procs({'gpus': 2}).spawn('slow', Slow)
slow.rest.call(0).get(); future = slow.hold.call(60); print('ready', flush=True); future.get()""",
    "while workers have children": """
slow = this_host().spawn_procs({'gpus': 2}).spawn('slow', Slow)
slow.child.call().get(); print('ready', flush=True); time.sleep(60)""",
}


@pytest.mark.parametrize(
    ("when", "number"),
    [(when, number) for when in ENDINGS for number in (signal.SIGINT, signal.SIGKILL)]
    + [("while a call is waited for", number) for number in (signal.SIGTERM, signal.SIGHUP)],
)
def test_a_signal_ends_the_program_and_leaves_no_process(program: Any, when: str, number: int) -> None:
    head = """
import ctypes, os, subprocess, time
from roost.actor import Actor, endpoint, this_host
class Slow(Actor):
    def __init__(self, seconds=0): time.sleep(seconds)
    @endpoint
    def rest(self, seconds): time.sleep(seconds)
    @endpoint
    def hold(self, seconds): ctypes.PyDLL(None).sleep(seconds)
    @endpoint
    def child(self): self.process = subprocess.Popen(["sleep", "60"])
"""
    run: Program = program(head + ENDINGS[when], ROOST_STOP_GRACE_PERIOD="300ms")
    assert run.line() == "ready"
    everyone = [child.pid for child in psutil.Process(run.process.pid).children(recursive=True)]
    assert everyone
    run.process.send_signal(number)
    status, _, err = run.end(30)
    assert status == -number, err
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in err
    eventually(lambda: not alive(everyone), "no process is left")


def test_interrupts_reach_the_program_and_not_its_workers(program: Any) -> None:
    run: Program = program(
        """
        import os, signal, time
        from roost.actor import Actor, endpoint, this_host
        class A(Actor):
            @endpoint
            def rest(self, seconds):
                time.sleep(seconds)
                return "rested"
        a = this_host().spawn_procs({"gpus": 2}).spawn("a", A)
        future = a.rest.call(1.0)
        try:
            print("ready", flush=True)
            future.get()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print(future.get().values(), flush=True)
        """
    )
    assert run.line() == "ready"
    os.killpg(run.process.pid, signal.SIGINT)  # as the terminal does
    check(run, "interrupted", "['rested', 'rested']")


def test_a_program_may_use_roost_in_an_exit_handler_registered_before(program: Any) -> None:
    err = check(
        program(
            """
            import atexit
            class Last:
                def __del__(self): pass
            from roost.actor import Actor, endpoint, this_host
            class A(Actor):
                @endpoint
                def ping(self): return "pong"
            a = this_host().spawn_procs().spawn("a", A)
            a.ping.call_one().get()
            atexit.register(lambda: print(a.ping.call_one().get(timeout=10)))
            """
        ),
        "pong",
    )
    assert err == ""


def test_a_quiet_program_says_nothing_at_its_end(program: Any) -> None:
    err = check(
        program(
            """
            import asyncio
            from roost.actor import Actor, Channel, concurrent_endpoint, endpoint, this_host
            class A(Actor):
                @concurrent_endpoint
                async def forever(self): await asyncio.Event().wait()
                @endpoint
                async def emit(self, port): port.send(1)
            a = this_host().spawn_procs({"gpus": 2}).spawn("a", A)
            pending = a.forever.call()
            port, receiver = Channel.open()
            a.emit.broadcast(port)
            waiting = [receiver.recv() for _ in range(5)]
            print(waiting[0].get(), waiting[1].get())
            """
        ),
        "1 1",
    )
    assert err == ""


def test_shutdown_context_ends_everything_once(program: Any) -> None:
    with pytest.raises(ValueError, match="seconds"):
        shutdown_context(host_timeout=-1)
    run: Program = program(
        """
        from roost.actor import Actor, endpoint, shutdown_context, this_host
        class A(Actor):
            @endpoint
            def ping(self): return 1
        shutdown_context().get()
        a = this_host().spawn_procs({"gpus": 1}).spawn("a", A)
        assert a.ping.call().get().values() == [1]
        shutdown_context().get()
        shutdown_context(host_timeout=1.0).get()
        try:
            a.ping.call().get(timeout=5)
        except Exception as error:
            print(type(error).__name__, flush=True)
        """
    )
    status, out, err = run.end()
    assert (status, out.strip()) == (0, "ActorStoppedError"), err


def test_a_program_that_forks_keeps_its_processes(program: Any) -> None:
    run: Program = program(
        """
        import os
        from roost.actor import Actor, endpoint, this_host
        class A(Actor):
            @endpoint
            def ping(self): return 1
        a = this_host().spawn_procs({"gpus": 1}).spawn("a", A)
        a.ping.call().get()
        pid = os.fork()
        if pid == 0:
            raise SystemExit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
        print(a.ping.call().get().values(), flush=True)
        """
    )
    status, out, err = run.end()
    assert (status, out) == (0, "[1]\n"), err
