"""Distributed programming in one ordinary Python program.

Hosts, processes and actors are N-dimensional meshes: see `roost.actor`. Settings: `roost.config`.
Distributed tensors: `roost.tensor`, which needs torch and is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roost._shape import Extent, NDSlice, Shape
    from roost.actor import Future
    from roost.config import (
        clear_runtime_config,
        configure,
        configured,
        get_global_config,
        get_runtime_config,
    )
    from roost.tensor import (
        Tensor,
        fetch_all,
        fetch_shard,
        get_active_mesh,
        inspect,
        no_mesh,
        show,
    )

__all__ = [
    "Extent",
    "Future",
    "NDSlice",
    "Shape",
    "Tensor",
    "clear_runtime_config",
    "configure",
    "configured",
    "fetch_all",
    "fetch_shard",
    "get_active_mesh",
    "get_global_config",
    "get_runtime_config",
    "inspect",
    "no_mesh",
    "show",
]

_HOMES = {
    "roost._shape": ("Extent", "NDSlice", "Shape"),
    "roost.actor": ("Future",),
    "roost.config": (
        "clear_runtime_config",
        "configure",
        "configured",
        "get_global_config",
        "get_runtime_config",
    ),
    "roost.tensor": (
        "Tensor",
        "fetch_all",
        "fetch_shard",
        "get_active_mesh",
        "inspect",
        "no_mesh",
        "show",
    ),
}


def __getattr__(name: str) -> Any:
    # On first use, so that `import roost.actor` does not pay for the rest.
    import importlib

    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(home), name)
            return value
    raise AttributeError(f"module 'roost' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
