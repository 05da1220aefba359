"""Distributed tensors: one program computes on tensors that live on the processes of a mesh.

    with procs.activate():
        x = torch.randn(4, 4)         # on every process, another one on each
        y = (x @ x).relu()            # runs there; nothing waits
    print(fetch_shard(y, gpus=1).get())

The controller holds metadata alone, found once for each kind of call and remembered; commands go to the
workers in batches. docs/tensors.md has the tour, docs/design has the reasons.
"""

from roost.tensor._active import activate, get_active_mesh, manual_seed, no_mesh, rank_tensors
from roost.tensor._fetch import fetch_all, fetch_shard, inspect, show
from roost.tensor._tensor import Tensor

__all__ = [
    "Tensor",
    "activate",
    "fetch_all",
    "fetch_shard",
    "get_active_mesh",
    "inspect",
    "manual_seed",
    "no_mesh",
    "rank_tensors",
    "show",
]
