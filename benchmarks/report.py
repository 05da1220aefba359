"""The results as a table, a plot, raw numbers, and a section of the documentation."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from datetime import date
from pathlib import Path

from benchmarks.targets import METRICS, Metric, judge

Medians = dict[str, dict[str, float]]

DOCS = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- results: written by python -m benchmarks --write-docs -->", "<!-- end of results -->"
PACKAGES = {"monarch": "torchmonarch", "ray": "ray", "xoscar": "xoscar", "roost": "roost"}


def number(value: float | None) -> str:
    """Three digits, without exponents."""
    if value is None:
        return ""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def ratio(metric: Metric, found: dict[str, float]) -> float | None:
    """How many times better roost is than the best of its peers."""
    others = [value for peer, value in found.items() if peer not in ("roost", "raw")]
    if "roost" not in found or not others:
        return None
    best = min(others) if metric.lower else max(others)
    return best / found["roost"] if metric.lower else found["roost"] / best


def rows(medians: Medians, peers: list[str]) -> tuple[list[str], list[list[str]]]:
    head = ["workload", "unit", *peers, "roost : best peer", "target", "met"]
    body = []
    for metric in METRICS:
        found = medians.get(metric.name)
        if not found:
            continue
        times = ratio(metric, found)
        target, met = judge(metric, found)
        verdict = "" if not target or met is None else ("yes" if met else "NO")
        cells = [number(found.get(peer)) for peer in peers]
        body.append(
            [metric.name, metric.unit, *cells, "" if times is None else f"{times:.1f}x", target, verdict]
        )
    return head, body


def show(medians: Medians, peers: list[str], problems: dict[str, str]) -> None:
    head, body = rows(medians, peers)
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(len(row[column]) for row in [head, *body]) for column in range(len(head))]
        for row in [head, *body]:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
    else:
        table = Table(*head)
        for row in body:
            table.add_row(*row, style="red" if row[-1] == "NO" else None)
        Console(width=max(Console().width, 150)).print(table)
    for cell, problem in problems.items():
        print(f"no result: {cell}: {problem}")


def machine() -> str:
    with open("/proc/meminfo") as file:
        gib = int(file.readline().split()[1]) / 2**20
    kernel = platform.release().partition("-")[0]
    return f"{os.cpu_count()} cores ({platform.machine()}), {gib:.0f} GiB, Linux {kernel}"


def versions(peers: list[str]) -> str:
    found = [f"CPython {platform.python_version()}"]
    for peer in peers:
        if peer in PACKAGES:
            found.append(f"{peer} {importlib.metadata.version(PACKAGES[peer])}")
    return ", ".join(found)


def save(
    medians: Medians,
    samples: dict[str, dict[str, list[float]]],
    peers: list[str],
    problems: dict[str, str],
    out: Path,
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    told = {"machine": machine(), "versions": versions(peers), "samples": samples, "problems": problems}
    (out / "results.json").write_text(json.dumps(told, indent=1))
    (out / "results.md").write_text(markdown(medians, peers))
    try:
        _plot(medians, out / "results.png")
    except ImportError:
        print("no plot: matplotlib is not installed")


def _plot(medians: Medians, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars = [(m.name, times) for m in METRICS if (times := ratio(m, medians.get(m.name, {}))) is not None]
    if not bars:
        return
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.24 * len(bars)), layout="constrained")
    names, values = zip(*reversed(bars), strict=True)
    axes.barh(names, values, color=["tab:blue" if value >= 1 else "tab:red" for value in values])
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times better than the best peer")
    axes.margins(y=0.01)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def markdown(medians: Medians, peers: list[str]) -> str:
    head, body = rows(medians, peers)
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in body]
    return "\n".join(lines) + "\n"


def write_docs(medians: Medians, peers: list[str], problems: dict[str, str], repeat: int) -> None:
    text = DOCS.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    runs = "one run" if repeat == 1 else f"medians of {repeat} runs"
    told = f"{date.today()}, {machine()}, {versions(peers)}; {runs}.\n\n"
    missing = "".join(f"\nNo result: {cell}: {problem}\n" for cell, problem in problems.items())
    DOCS.write_text(f"{before}{BEGIN}\n\n{told}{markdown(medians, peers)}{missing}\n{END}{after}")
