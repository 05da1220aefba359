"""Threads that spawn, call, kill and stop at random: each call ends as it may, and nothing is left."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import os
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest

from roost.actor import Channel, DeadlockError, SpawnError, SupervisionError, this_host
from roost.config import configured

from .conftest import alive, eventually
from .servants import Servant, used

pytestmark = pytest.mark.usefixtures("failures")
MAY_FAIL_WITH = (SupervisionError, SpawnError, DeadlockError)  # actors do ask each other in circles
BOUND_S = 30.0


class Chaos:
    """A world of a few meshes that several threads use and break."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.lock = threading.Lock()
        self.procs: list[Any] = []
        self.actors: list[Any] = []
        self.everything: list[Any] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.add_processes(random.Random(seed))

    def pick(self, rng: random.Random, among: list[Any]) -> Any:
        with self.lock:
            return rng.choice(among)

    # -- what the threads do ------------------------------------------------------------------------------

    def add_processes(self, rng: random.Random) -> None:
        procs = this_host().spawn_procs({"gpus": rng.randint(1, 3)})
        with self.lock:
            self.procs.append(procs)
            self.everything.append(procs)
            self.actors.append(procs.spawn("servants", Servant))

    def add_actors(self, rng: random.Random) -> None:
        mesh = self.pick(rng, self.procs).spawn("servants", Servant)
        with self.lock:
            self.actors.append(mesh)

    def call(self, rng: random.Random) -> None:
        mesh = self.pick(rng, self.actors)
        value = rng.random()
        assert set(mesh.echo.call(value).get(timeout=BOUND_S).values()) == {value}

    def call_many(self, rng: random.Random) -> None:
        mesh = self.pick(rng, self.actors)
        one = mesh.slice(gpus=rng.randrange(len(mesh)))
        futures = [one.echo.call_one(number) for number in range(50)]
        errors = {type(future.exception(timeout=BOUND_S)) for future in futures}
        assert errors <= {type(None), *MAY_FAIL_WITH, *SupervisionError.__subclasses__()}, errors

    def call_in_a_loop(self, rng: random.Random) -> None:
        mesh = self.pick(rng, self.actors)

        async def run() -> list[Any]:
            calls = [asyncio.wait_for(mesh.echo.call(n), BOUND_S) for n in range(20)]
            return await asyncio.gather(*calls)

        assert [len(values) for values in asyncio.run(run())] == [len(mesh)] * 20

    def send_much(self, rng: random.Random) -> None:
        mesh = self.pick(rng, self.actors)
        array = np.full(100_000, rng.random())
        for got in mesh.echo.call(array).get(timeout=BOUND_S).values():
            assert (got == array).all()

    def stream(self, rng: random.Random) -> None:
        for future in self.pick(rng, self.actors).echo.stream(1):
            assert future.get(timeout=BOUND_S) == 1

    def ask_each_other(self, rng: random.Random) -> None:
        one, other = self.pick(rng, self.actors), self.pick(rng, self.actors)
        if one == other:  # an actor that asks itself is another matter
            return
        pids = one.slice(gpus=0).pids_of.call_one(other.slice(gpus=slice(0, 1))).get(timeout=BOUND_S)
        assert len(pids) == 1

    def use_a_channel(self, rng: random.Random) -> None:
        port, receiver = Channel[int].open()
        mesh = self.pick(rng, self.actors)
        mesh.slice(gpus=0).emit.call_one(port, *range(20)).get(timeout=BOUND_S)
        assert [receiver.recv().get(timeout=BOUND_S) for _ in range(20)] == list(range(20))

    def give_up(self, rng: random.Random) -> None:
        mesh = self.pick(rng, self.actors)
        mesh.echo.call(1).cancel()
        mesh.echo.options(timeout=0.001).call(1).exception()
        mesh.echo.call(1)

    def raise_unheard(self, rng: random.Random) -> None:
        self.pick(rng, self.actors).slice(gpus=0).fail.broadcast()

    def kill(self, rng: random.Random) -> None:
        mesh = self.pick(rng, self.actors)
        pid = mesh.slice(gpus=0).pid.call_one().get(timeout=BOUND_S)
        with contextlib.suppress(ProcessLookupError):  # another thread was faster
            os.kill(pid, signal.SIGKILL)

    def stop_actors(self, rng: random.Random) -> None:
        self.pick(rng, self.actors).stop("at random").get(timeout=BOUND_S)

    def stop_processes(self, rng: random.Random) -> None:
        with self.lock:
            if len(self.procs) == 1:
                return
            procs = self.procs.pop(rng.randrange(len(self.procs)))
            self.actors = [mesh for mesh in self.actors if rng.random() < 0.7] or self.actors
        procs.stop("at random").get(timeout=BOUND_S)

    # -- how they do it -----------------------------------------------------------------------------------

    def run(self, threads: int, steps: int) -> None:
        workers = [
            threading.Thread(target=self.work, args=(self.seed * 100 + n, steps)) for n in range(threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def work(self, seed: int, steps: int) -> None:
        rng = random.Random(seed)
        calls: list[Callable[[random.Random], None]] = [
            self.call,
            self.call_many,
            self.call_in_a_loop,
            self.send_much,
            self.stream,
            self.ask_each_other,
            self.use_a_channel,
            self.give_up,
        ]
        changes = [
            self.add_processes,
            self.add_actors,
            self.add_actors,
            self.raise_unheard,
            self.kill,
            self.stop_actors,
            self.stop_processes,
        ]
        for _ in range(steps):
            act = rng.choice(changes if rng.random() < 0.25 else calls)
            try:
                act(rng)
                self.counts[f"{act.__name__} worked"] += 1
            except MAY_FAIL_WITH:
                self.counts[f"{act.__name__} failed"] += 1
            except BaseException as error:
                self.wrong.append(f"{act.__name__} (seed {seed}): {type(error).__name__}: {error}")

    def end(self) -> None:
        for procs in self.everything:
            procs.stop("the end").get(timeout=BOUND_S)


def children() -> list[int]:
    return alive(child.pid for child in psutil.Process().children(recursive=True))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "steps"),
    [(1, 60), (2, 60), *(pytest.param(seed, 2500, marks=pytest.mark.slow) for seed in range(3, 9))],
)
def test_whatever_happens_each_call_ends_and_nothing_is_left(
    seed: int, steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("roost", "asyncio"):  # records that are kept hold the loops that their errors went through
        caplog.set_level(logging.CRITICAL, name)
    this_host().spawn_procs().stop().get(timeout=BOUND_S)
    before, fds = children(), used().fds
    with configured(stop_grace_period="2s"):
        chaos = Chaos(seed)
        chaos.run(threads=4, steps=steps)
        chaos.end()
    assert chaos.wrong == []
    assert sum(count for name, count in chaos.counts.items() if name.endswith("worked")) > steps
    eventually(lambda: set(children()) <= set(before), "no process is left")
    eventually(lambda: used().fds <= fds + 12, "descriptors are given back")
