"""What the tests of hosts share: hosts, and networks between them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actor.conftest import (  # the fixtures are used by name
    Program,
    alive,
    eventually,
    failures,
    nothing_fails_unheard,
    program,
)
from roost.actor import HostMesh, WorkerLoop, attach_to_workers, start_worker_loop_forever

from .members import Member
from .proxy import Proxy

__all__ = ["Program", "alive", "eventually", "failures", "nothing_fails_unheard", "program"]


@pytest.fixture(scope="session", autouse=True)
def key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The tests have a cluster of their own."""
    path = tmp_path_factory.mktemp("key") / "cluster.key"
    from roost.actor._keys import keygen

    keygen(str(path))
    before = os.environ.get("ROOST_KEY")
    os.environ["ROOST_KEY"] = str(path)
    yield path
    if before is None:
        del os.environ["ROOST_KEY"]
    else:
        os.environ["ROOST_KEY"] = before


@pytest.fixture(scope="session", params=["tcp", "unix"])
def hosts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostMesh]:
    """Two hosts, reached by TCP and by sockets of this machine."""
    folder = tmp_path_factory.mktemp("sockets")
    where = {
        "tcp": ["tcp://127.0.0.1:0", "tcp://127.0.0.1:0"],
        "unix": [f"unix://{folder}/a/s", f"ipc://{folder}/b/s"],
    }[request.param]
    loops = [start_worker_loop_forever(address=address) for address in where]
    mesh = attach_to_workers(workers=[loop.address for loop in loops])
    yield mesh
    mesh.shutdown().get(timeout=30)
    assert [loop.wait(timeout=10) for loop in loops] == [0, 0]


@pytest.fixture(scope="session")
def members(hosts: HostMesh) -> Iterator[Member]:
    """Two actors on each of two hosts, for tests that kill none."""
    procs = hosts.spawn_procs({"gpus": 2}, name="shared")
    yield procs.spawn("members", Member)
    procs.stop().get(timeout=30)


@pytest.fixture
def loops() -> Iterator[Callable[..., WorkerLoop]]:
    """Starts hosts that end with the test."""
    started: list[WorkerLoop] = []

    def start(address: str = "tcp://127.0.0.1:0", **variables: str) -> WorkerLoop:
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            started.append(start_worker_loop_forever(address=address))
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def proxy() -> Iterator[Callable[[str], Proxy]]:
    """Puts a network before a host."""
    made: list[Proxy] = []

    def put(target: str) -> Proxy:
        made.append(Proxy(target))
        return made[-1]

    yield put
    for one in made:
        one.close()


class Host:
    """`roost host`, as an operator would run it."""

    def __init__(self, *arguments: str, prefix: tuple[str, ...] = (), **variables: str) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "roost.cli", "host", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.process.communicate()[1])
        self.address = line.split()[-1]
        self.pid = self.process.pid

    def refusal(self) -> str:
        """The next line on stderr."""
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def end(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=20)


@pytest.fixture
def host() -> Iterator[Callable[..., Host]]:
    """Starts `roost host`."""
    started: list[Host] = []

    def start(*arguments: str, **options: object) -> Host:
        started.append(Host(*(arguments or ("--address", "tcp://127.0.0.1:0")), **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for one in started:
        one.end()
