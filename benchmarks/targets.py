"""What is measured, in which unit, and what roost has to reach: ratios to its peers, never times."""

from __future__ import annotations

from dataclasses import dataclass

BEST = "best peer"


@dataclass(frozen=True)
class Metric:
    """One row of the table.

    Attributes:
        name: as the workloads report it.
        unit: of the numbers.
        lower: whether less is better.
        targets: for a peer (or the best of them), how many times better than it roost has to be.
    """

    name: str
    unit: str
    lower: bool = True
    targets: tuple[tuple[str, float], ...] = ()
    limit: float | None = None
    """A bound in the unit itself, for what does not depend on the speed of the machine."""


def _table() -> list[Metric]:
    latency, mesh = (("monarch", 8.0), ("xoscar", 4.0)), ((BEST, 8.0),)
    rows = [Metric("import", "ms", targets=(("monarch", 4.0),))]
    for count, factor in ((1, 0.0), (4, 10.0), (16, 0.0), (32, 20.0)):
        rows.append(Metric(f"spawn {count}", "ms", targets=(("monarch", factor),) if factor else ()))
    rows += [
        Metric("call_one sync p50", "us", targets=latency),
        Metric("call_one sync p99", "us"),
        Metric("call_one async p50", "us", targets=latency),
        Metric("call_one async p99", "us"),
        Metric("call_one pipelined", "1/s", lower=False, targets=((BEST, 10.0),)),
        Metric("actor to actor p50", "us", targets=latency),
        Metric("actor to actor pipelined", "1/s", lower=False, targets=((BEST, 10.0),)),
    ]
    for count in (1, 4, 16, 32):
        rows.append(Metric(f"mesh call {count} p50", "us", targets=mesh if count > 1 else ()))
    for count in (4, 32):
        rows.append(Metric(f"mesh calls pipelined {count}", "1/s", lower=False, targets=mesh))
    for count in (1, 4, 16, 32):
        targets = ((BEST, 10.0),) if count in (1, 32) else ()
        rows.append(Metric(f"broadcast {count}", "1/s", lower=False, targets=targets))
    rows.append(Metric("port stream", "1/s", lower=False, targets=((BEST, 10.0),)))
    for size in ("1 KiB", "64 KiB", "1 MiB", "16 MiB", "64 MiB", "256 MiB"):
        four = ((BEST, 4.0),) if size in ("1 MiB", "64 MiB") else ()
        rows.append(Metric(f"echo bytes {size}", "GB/s", lower=False, targets=four))
    for size in ("1 MiB", "64 MiB", "256 MiB"):
        one = (("ray", 1.0),) if size == "64 MiB" else ()
        rows.append(Metric(f"echo array {size}", "GB/s", lower=False, targets=one))
    rows.append(Metric("echo tensor 64 MiB", "GB/s", lower=False))
    return [
        *rows,
        Metric("broadcast 64 MiB to 8", "ms", targets=(("ray", 1.0),)),
        Metric("kill to exception", "ms", limit=10.0),
        Metric("worker memory", "MiB", limit=20.0),
    ]


METRICS = _table()


def judge(metric: Metric, found: dict[str, float]) -> tuple[str, bool | None]:
    """The target as text, and whether roost has met it; None when it cannot be said."""
    mine = found.get("roost")
    if metric.limit is not None:
        return f"<= {metric.limit:g} {metric.unit}", None if mine is None else mine <= metric.limit
    texts, verdicts = [], []
    for peer, factor in metric.targets:
        texts.append(f"{factor:g}x {peer}")
        others = {name: value for name, value in found.items() if name not in ("roost", "raw")}
        if peer == BEST:
            against = (min if metric.lower else max)(others.values(), default=None)
        else:
            against = others.get(peer)
        if mine is not None and against is not None:
            verdicts.append((against / mine if metric.lower else mine / against) >= factor)
    return ", ".join(texts), all(verdicts) if verdicts else None
