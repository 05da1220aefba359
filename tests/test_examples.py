"""The examples do what they say, as a user would run them."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def train(out: Path, *options: str) -> str:
    """Runs the example to its end; returns what it has printed."""
    command = [sys.executable, str(EXAMPLES / "train.py"), "--out", str(out), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as program:
        assert program.stdout is not None
        children: set[psutil.Process] = set()
        lines = []
        for line in program.stdout:
            lines.append(line)
            children |= set(psutil.Process(program.pid).children(recursive=True))
        program.wait()
    output = "".join(lines)
    assert program.returncode == 0, output
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    return output


def losses(output: str) -> list[str]:
    return re.findall(r"step +\d+: loss (\S+),", output)


def models() -> list[object]:
    slow = [pytest.mark.slow, pytest.mark.timeout(600)]
    if importlib.util.find_spec("torch") is None:
        slow.append(pytest.mark.skip(reason="torch is not installed"))
    return [pytest.param((), id="torch", marks=slow), pytest.param(("--no-torch",), id="numpy")]


@pytest.mark.parametrize("options", models())
def test_a_killed_worker_costs_no_step_and_changes_no_loss(tmp_path: Path, options: tuple[str, ...]) -> None:
    steps = ("--steps", "12", "--batch", "4")
    disturbed = train(tmp_path / "disturbed", *steps, *options)
    assert "killing worker 2 with SIGKILL" in disturbed
    assert "SIGKILL" in disturbed.partition("killing worker")[2]
    assert "fresh workers go on" in disturbed
    assert [path.suffix for path in (tmp_path / "disturbed").iterdir()] == [".png"]
    assert "\x1b" not in disturbed

    undisturbed = train(tmp_path / "undisturbed", *steps, *options, "--no-kill")
    assert "SIGKILL" not in undisturbed
    assert len(losses(disturbed)) == 12
    assert losses(disturbed) == losses(undisturbed)
