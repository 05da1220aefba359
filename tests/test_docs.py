"""The Python in README.md and docs/ runs: all blocks of one file, in order, as one program."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TIMEOUT_S = 90

_BLOCK = re.compile(r"^```python *([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def script_of(text: str) -> str:
    """The blocks of a page, on the lines that they have there: tracebacks point into the page."""
    lines: list[str] = []
    for block in _BLOCK.finditer(text):
        options, code = block.group(1).split(), block.group(2)
        if "no-run" in options:
            continue
        first = text.count("\n", 0, block.start(2))
        lines += [""] * (first - len(lines)) + code.splitlines()
    return "\n".join(lines) + "\n" if lines else ""


def run(script: Path) -> tuple[int | None, str]:
    """Runs a program in a process group of its own; None for one that had to be ended."""
    program = subprocess.Popen(
        [sys.executable, script],
        cwd=script.parent,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = program.communicate(timeout=TIMEOUT_S)
        return program.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGKILL)
        return None, program.communicate()[0]


@pytest.mark.parametrize("page", [page for page in PAGES if script_of(page.read_text())], ids=name_of)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    if "import torch" in script_of(page.read_text()):
        pytest.importorskip("torch", reason="the page is about tensors")
    script = tmp_path / f"{page.stem}.py"
    script.write_text(script_of(page.read_text()))

    status, output = run(script)

    assert status is not None, f"still running after {TIMEOUT_S} s\n{output}"
    assert status == 0, output


def test_blocks_keep_their_lines_and_no_run_is_left_out() -> None:
    page = "# Page\n\n```python\na = 1\n```\n\n```python no-run\nb\n```\n\n```python\nc = 3\n```\n"

    lines = script_of(page).splitlines()

    assert [(number, line) for number, line in enumerate(lines, 1) if line] == [
        (4, "a = 1"),
        (12, "c = 3"),
    ]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())

    missing = [target for target in targets if not (page.parent / target).exists()]

    assert not missing, f"{name_of(page)} links to files that do not exist: {missing}"
