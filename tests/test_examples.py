"""The examples do what they say, as a user would run them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

TRAIN = Path(__file__).resolve().parent.parent / "examples" / "train.py"


def run(*options: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Runs the example to its end; returns its status and what it has printed. It must leave no process."""
    command = [sys.executable, str(TRAIN), *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    ) as program:
        assert program.stdout is not None
        children: set[psutil.Process] = set()
        lines = []
        for line in program.stdout:
            lines.append(line)
            children |= set(psutil.Process(program.pid).children(recursive=True))
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    return program.returncode, "".join(lines)


def train(out: Path, *options: str) -> str:
    """A run that ends well: what it has printed."""
    status, output = run("--steps", "12", "--batch", "4", "--out", str(out), *options)
    assert status == 0, output
    assert "\x1b" not in output
    assert [path.suffix for path in out.iterdir()] == [".png"]
    return output


def losses(output: str) -> list[str]:
    return re.findall(r"^step +\d+: loss (\S+),", output, flags=re.MULTILINE)


@pytest.fixture
def without_torch(tmp_path: Path) -> dict[str, str]:
    """An environment in which torch cannot be imported."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "torch.py").write_text("raise ImportError('not installed')\n")
    return {**os.environ, "PYTHONPATH": str(tmp_path / "modules")}


MODELS = [
    pytest.param(("--no-torch",), id="numpy"),
    pytest.param(
        (),
        id="torch",
        marks=[
            pytest.mark.slow,
            pytest.mark.timeout(600),
            pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
        ],
    ),
]


@pytest.mark.parametrize("options", MODELS)
def test_a_killed_worker_costs_no_step_and_changes_no_loss(tmp_path: Path, options: tuple[str, ...]) -> None:
    disturbed = train(tmp_path / "disturbed", *options)
    assert "step    6: killing worker 2 with SIGKILL" in disturbed
    assert "was killed by signal 9 (SIGKILL)" in disturbed
    assert "4 fresh workers go on" in disturbed

    undisturbed = train(tmp_path / "undisturbed", *options, "--no-kill")
    assert "SIGKILL" not in undisturbed
    assert len(losses(disturbed)) == 12
    assert losses(disturbed) == losses(undisturbed)


def test_the_model_in_numpy_needs_no_torch(tmp_path: Path, without_torch: dict[str, str]) -> None:
    status, output = run("--no-torch", "--steps", "4", "--out", str(tmp_path / "out"), env=without_torch)
    assert len(losses(output)) == 4, output
    assert status == 0, output


def test_without_torch_it_says_what_to_do(without_torch: dict[str, str]) -> None:
    status, output = run("--steps", "4", env=without_torch)
    assert status == 2
    assert "pip install '.[torch]'" in output
    assert "--no-torch" in output
