"""What the tests of actors share: processes to spawn on, and programs to run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import roost.actor
from roost.actor import MeshFailure, ProcMesh, this_host


@pytest.fixture(scope="session")
def procs() -> Iterator[ProcMesh]:
    """Four processes for tests that kill none of them."""
    mesh = this_host().spawn_procs({"gpus": 4}, name="shared")
    yield mesh
    mesh.stop().get(timeout=60)


heard: list[MeshFailure] = []
"""What has reached the root unhandled since the test began."""


class Expecting:
    """Until when failures of a test before that asked for some may come late."""

    until_s = 0.0


@pytest.fixture(autouse=True)
def nothing_fails_unheard(request: pytest.FixtureRequest) -> Iterator[None]:
    """No failure ends the test run, and each is an error of a test that did not ask for `failures`."""
    heard.clear()
    roost.actor.unhandled_fault_hook = heard.append  # for good: also what comes late
    yield
    if "failures" in request.fixturenames:
        Expecting.until_s = time.monotonic() + 5.0
    elif time.monotonic() > Expecting.until_s:
        assert heard == []


@pytest.fixture
def failures() -> list[MeshFailure]:
    """What reaches the root unhandled."""
    return heard


def eventually(condition: Callable[[], Any], what: str = "the condition", within_s: float = 20.0) -> Any:
    """Waits until a condition is true, and returns what it gave."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.01)
    return found


def alive(pids: Iterable[int]) -> list[int]:
    """Which of these processes run. One that has ended and whose parent has not looked yet does not."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


class Program:
    """A program of a user, in a process of its own."""

    def __init__(self, path: Path, source: str, **variables: str) -> None:
        path.write_text(textwrap.dedent(source))
        self.process = subprocess.Popen(
            [sys.executable, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
            start_new_session=True,
        )

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def end(self, timeout_s: float = 60.0) -> tuple[int, str, str]:
        """Waits for its end: status, stdout, stderr."""
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def start(source: str, **variables: str) -> Program:
        made = Program(tmp_path / f"program{len(started)}.py", source, **variables)
        started.append(made)
        return made

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
        for stream in (one.process.stdout, one.process.stderr):
            if stream is not None:
                stream.close()
