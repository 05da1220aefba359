"""Runs the benchmarks."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import report
from benchmarks.workloads import GROUPS

MODULES = {"roost": "roost.actor", "monarch": "monarch.actor", "ray": "ray", "xoscar": "xoscar", "raw": None}
EXTRAS = {"monarch": "torchmonarch", "ray": "ray", "xoscar": "xoscar"}
LIMIT_S = 150
ROOT = Path(__file__).resolve().parent.parent

Samples = dict[str, dict[str, list[float]]]
"""By metric, by peer: one number a repetition."""


def group_of(peer: str, group: str, scale: float) -> tuple[dict[str, float], str]:
    """The numbers of one group, or why there are none."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BENCHMARKS_SCALE": str(scale)}
    environment["BENCHMARKS_RUN"] = str(os.getpid())
    environment |= {"RAY_DEDUP_LOGS": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "PYTHONWARNINGS": "ignore"}
    if importlib.util.find_spec("torch") is not None and group == "payloads" and peer in ("roost", "monarch"):
        environment["BENCHMARKS_TORCH"] = "1"
    command = [sys.executable, "-m", "benchmarks.one", peer, group]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        out, err = "", f"took more than {LIMIT_S} s"
    finally:
        end_all(process)
    for line in out.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT ")), ""
    return {}, (err.strip().splitlines() or ["no result"])[-1]


def end_all(process: subprocess.Popen[str]) -> None:
    """Some peers leave processes behind: all that carry this run's mark go."""
    import psutil

    for other in psutil.process_iter(["pid", "environ"]):
        try:
            if (other.info["environ"] or {}).get("BENCHMARKS_RUN") == str(os.getpid()):
                other.kill()
        except psutil.Error:
            continue
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def import_ms(module: str) -> float:
    """How much longer an interpreter takes that imports the module."""

    def run(code: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        return time.perf_counter() - started

    with_it = statistics.median(run(f"import {module}") for _ in range(3))
    return (with_it - statistics.median(run("pass") for _ in range(3))) * 1e3


def measure(
    peers: list[str], groups: list[str], repeat: int, scale: float, samples: Samples, problems: dict[str, str]
) -> Iterator[str]:
    """Adds to ``samples`` and ``problems``, and gives the name of each group that is done."""

    def add(metric: str, peer: str, value: float) -> None:
        samples.setdefault(metric, {}).setdefault(peer, []).append(value)

    for number in range(repeat):
        for group in groups:
            for peer in peers:
                print(f"[{number + 1}/{repeat}] {group:12} {peer:8} ", end="", flush=True)
                started = time.perf_counter()
                if group == "import":
                    module = MODULES[peer]
                    if module is not None:
                        add("import", peer, import_ms(module))
                    print(f"{time.perf_counter() - started:.1f} s")
                    continue
                if peer == "raw" and group == "one_to_many":
                    print("does not apply")
                    continue
                found, problem = group_of(peer, group, scale)
                for metric, value in found.items():
                    add(metric, peer, value)
                if problem:
                    problems[f"{peer} {group}"] = problem
                print(problem or f"{time.perf_counter() - started:.1f} s", flush=True)
            yield group


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="roost beside its peers")
    parser.add_argument("--peers", default=",".join(MODULES), help="which, with commas between")
    parser.add_argument("--only", default="", help="groups whose name contains this")
    parser.add_argument("--repeat", type=int, default=3, help="how often; the medians count (default 3)")
    parser.add_argument("--quick", action="store_true", help="once, with a twentieth of the repetitions")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"))
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()

    peers = []
    for peer in options.peers.split(","):
        if peer not in MODULES:
            parser.error(f"there is no peer {peer!r}; there are {', '.join(MODULES)}")
        module = MODULES[peer]
        if module is not None and importlib.util.find_spec(module.partition(".")[0]) is None:
            print(f"skipped: {peer} is not installed: pip install {EXTRAS.get(peer, peer)}")
        else:
            peers.append(peer)
    groups = [group for group in ("import", *GROUPS) if options.only in group]
    if not groups:
        parser.error(f"no group contains {options.only!r}; there are import, {', '.join(GROUPS)}")

    repeat, scale = (1, 0.05) if options.quick else (options.repeat, 1.0)
    samples: Samples = {}
    problems: dict[str, str] = {}
    medians: report.Medians = {}
    for _ in measure(peers, groups, repeat, scale, samples, problems):
        medians = {m: {p: statistics.median(v) for p, v in by.items()} for m, by in samples.items()}
        # After each group, so that a run that is broken off has not been for nothing.
        report.save(medians, samples, peers, problems, options.out)
        if options.write_docs:
            report.write_docs(medians, peers, problems, repeat)
    report.show(medians, peers, problems)
    print(f"written: {options.out}/results.json, results.md, results.png")
    return 1 if any(name.startswith("roost") for name in problems) else 0


if __name__ == "__main__":
    sys.exit(main())
