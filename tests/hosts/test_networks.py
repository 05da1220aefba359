"""Four hosts with networks of their own: links that go down, and hosts that are lost without a word."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from roost.actor import HostMesh, MeshFailure, SupervisionError, attach_to_workers

from .conftest import Host, Program, alive, eventually
from .members import Member

_HOSTS = 4


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Network:
    """A bridge, and network namespaces that are linked to it."""

    def __init__(self) -> None:
        self.tag = f"r{os.getpid() % 100_000}"
        self.bridge = f"{self.tag}b"
        self.subnet = f"10.213.{os.getpid() % 250}"
        self.spaces: list[str] = []

    def build(self) -> None:
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("addr", "add", f"{self.subnet}.1/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        for number in range(_HOSTS):
            space, outer = f"{self.tag}n{number}", self.outer(number)
            _ip("netns", "add", space)
            self.spaces.append(space)
            _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", outer, "master", self.bridge, "up")
            _ip("-n", space, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "link", "set", "eth0", "up")

    def outer(self, number: int) -> str:
        return f"{self.tag}v{number}"

    def address(self, number: int) -> str:
        return f"{self.subnet}.{number + 2}"

    def down(self, number: int) -> None:
        _ip("link", "set", self.outer(number), "down")

    def up(self, number: int) -> None:
        _ip("link", "set", self.outer(number), "up")

    def remove(self) -> None:
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], check=False, capture_output=True)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    if shutil.which("ip") is None:
        pytest.skip("needs the command ip")
    made = Network()
    try:
        made.build()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
    yield made
    made.remove()


@pytest.fixture
def machines(network: Network, host: Callable[..., Host]) -> list[Host]:
    """`roost host` in each of the namespaces."""
    return [
        host("--address", f"tcp://{network.address(number)}:0", prefix=("ip", "netns", "exec", space))
        for number, space in enumerate(network.spaces)
    ]


@pytest.fixture
def cluster(machines: list[Host]) -> HostMesh:
    return attach_to_workers(workers=[machine.address for machine in machines])


def _spawn(cluster: HostMesh) -> tuple[Any, Any, list[int]]:
    procs = cluster.spawn_procs({"gpus": 4})
    actors = procs.spawn("members", Member)
    return procs, actors, list(actors.pid.call().get(timeout=60).values())


def test_a_link_that_returns_within_the_grace_loses_nothing(network: Network, cluster: HostMesh) -> None:
    procs, actors, pids = _spawn(cluster)
    assert len(set(pids)) == 16
    for number in range(300):
        if number == 100:
            network.down(1)
        if number == 200:
            time.sleep(1.0)
            network.up(1)
        actors.note.broadcast(number)

    for noted in actors.noted.call().get(timeout=60).values():
        assert noted == list(range(300))
    assert list(actors.pid.call().get(timeout=60).values()) == pids
    procs.stop().get(timeout=30)


def test_a_host_lost_without_a_word_is_dead_on_both_sides_and_stays_written_off(
    network: Network, cluster: HostMesh, failures: list[MeshFailure]
) -> None:
    _, actors, pids = _spawn(cluster)
    assert actors.slice(hosts=0, gpus=0).ask.call_one(actors.slice(hosts=2)).get(timeout=30) == pids[8:12]
    waiting = actors.slice(hosts=2).sleep.call(600.0)
    network.down(2)
    try:
        with pytest.raises(SupervisionError, match=network.address(2).replace(".", r"\.")):
            waiting.get(timeout=30)
        eventually(lambda: not alive(pids[8:12]), "the lost host ends what belongs to the program")
    finally:
        network.up(2)

    rest = actors.slice(hosts=slice(0, 2))
    assert list(rest.pid.call().get(timeout=30).values()) == pids[:8]
    with pytest.raises(SupervisionError):  # it is back, but nothing of it is taken for what it was
        actors.slice(hosts=2).pid.call().get(timeout=30)
    eventually(lambda: {failure.rank for failure in failures} >= {8, 9, 10, 11})


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_agent_that_is_killed_or_frozen_is_a_dead_host(
    cluster: HostMesh, machines: list[Host], failures: list[MeshFailure], number: signal.Signals
) -> None:
    _, actors, pids = _spawn(cluster)
    waiting = actors.slice(hosts=3).sleep.call(600.0)
    os.kill(machines[3].pid, number)
    try:
        with pytest.raises(SupervisionError):
            waiting.get(timeout=30)
        assert list(actors.slice(hosts=0).pid.call().get(timeout=30).values()) == pids[:4]
    finally:
        if number == signal.SIGSTOP:
            os.kill(machines[3].pid, signal.SIGCONT)
    eventually(lambda: not alive(pids[12:]), "nothing is left on that host")
    eventually(lambda: {failure.rank for failure in failures} >= {12, 13, 14, 15})


def test_a_killed_controller_leaves_no_process_on_any_host(
    machines: list[Host], program: Callable[..., Program]
) -> None:
    addresses = [machine.address for machine in machines]
    started = program(
        f"""
        import time
        from hosts.members import Member
        from roost.actor import attach_to_workers

        procs = attach_to_workers(workers={addresses!r}).spawn_procs({{"gpus": 4}})
        pids = procs.spawn("members", Member).pid.call().get(timeout=60).values()
        print(*pids, flush=True)
        time.sleep(600)
        """,
        PYTHONPATH=os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    )
    pids = [int(pid) for pid in started.line().split()]
    assert len(alive(pids)) == 16
    os.kill(started.process.pid, signal.SIGKILL)

    eventually(lambda: not alive(pids), "the workers end with their program")
    for machine in machines:
        eventually(lambda machine=machine: not psutil.Process(machine.pid).children(), "nothing is left")
