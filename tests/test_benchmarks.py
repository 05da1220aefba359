"""The benchmarks run, and judge as they say. No time is asserted."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.targets import BEST, Metric, judge  # noqa: E402


@pytest.mark.timeout(120)
@pytest.mark.parametrize("group", ["messages", "mesh4", "deaths"])
def test_a_group_gives_numbers_for_roost_and_the_floor(tmp_path: Path, group: str) -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--peers", "roost,raw", "--only", group]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "results.json").read_text())
    assert told["problems"] == {}
    peers = {peer for found in told["samples"].values() for peer in found}
    assert peers == {"roost", "raw"}
    numbers = [n for found in told["samples"].values() for values in found.values() for n in values]
    assert numbers
    assert all(math.isfinite(number) and number > 0 for number in numbers)
    assert "| workload |" in (tmp_path / "results.md").read_text()


def test_unknown_peers_and_groups_are_refused() -> None:
    for options in (["--peers", "nobody"], ["--only", "nothing"]):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks", *options], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 2
        assert "there are" in done.stderr


def test_targets_are_ratios_to_one_peer_or_the_best() -> None:
    lower = Metric("x", "us", targets=(("a", 4.0), (BEST, 2.0)))
    assert judge(lower, {"roost": 10, "a": 40, "b": 20, "raw": 1}) == ("4x a, 2x best peer", True)
    assert judge(lower, {"roost": 10, "a": 39, "b": 20})[1] is False
    assert judge(lower, {"roost": 10, "a": 50, "b": 19})[1] is False
    higher = Metric("x", "1/s", lower=False, targets=((BEST, 10.0),))
    assert judge(higher, {"roost": 100, "a": 10, "b": 9})[1] is True
    assert judge(higher, {"roost": 100, "a": 11})[1] is False
    assert judge(higher, {"roost": 100})[1] is None
    assert judge(Metric("x", "ms", limit=10.0), {"roost": 11.0})[1] is False
