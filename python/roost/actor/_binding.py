"""Binding a process to processors and memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_NODES = "/sys/devices/system/node"
_SYS_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MPOL_BIND = 2


def parse_list(text: str) -> set[int]:
    """Numbers of a list such as ``0-3,8``.

    Raises:
        ValueError: not such a list.
    """
    numbers: set[int] = set()
    for part in str(text).split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"{text!r} is not a list of numbers such as 0-3,8")
        numbers.update(range(int(first), int(last if dash else first) + 1))
    return numbers


def bind(binding: Mapping[str, str]) -> None:
    """Binds the calling process."""
    processors: set[int] | None = None
    for key in ("cpus", "physcpubind"):
        if key in binding:
            processors = parse_list(binding[key])
    if "cpunodebind" in binding:
        nodes: set[int] = set()
        for node in parse_list(binding["cpunodebind"]):
            with open(f"{_NODES}/node{node}/cpulist") as file:
                nodes |= parse_list(file.read().strip())
        processors = nodes if processors is None else processors & nodes
    if processors is not None:
        os.sched_setaffinity(0, processors)
    if "membind" in binding:
        _bind_memory(parse_list(binding["membind"]))


def _bind_memory(nodes: set[int]) -> None:
    import ctypes

    number = _SYS_SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        raise OSError(f"membind is not supported on {os.uname().machine}")
    mask = ctypes.c_ulong(sum(1 << node for node in nodes))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, _MPOL_BIND, ctypes.byref(mask), ctypes.c_ulong(64)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"membind to NUMA nodes {sorted(nodes)}: {os.strerror(error)}")
