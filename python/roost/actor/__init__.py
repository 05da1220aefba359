"""Actors: spawn them on meshes of processes, call them, and handle their failures as exceptions.

from roost.actor import Actor, endpoint, this_host

class Greeter(Actor):
    @endpoint
    def greet(self, name: str) -> str:
        return f"hello {name}"

procs = this_host().spawn_procs({"gpus": 4})
greeters = procs.spawn("greeters", Greeter)
print(greeters.greet.call("world").get())
"""

from roost._shape import Extent, NDSlice, Point, Region, Shape, Slice
from roost.actor._accumulator import Accumulator
from roost.actor._actor import Actor
from roost.actor._actor_mesh import ActorMesh
from roost.actor._attach import attach_to_workers, hosts_from_config
from roost.actor._bootstrap import BootstrapCommand, default_bootstrap_cmd
from roost.actor._channel import Channel, Port
from roost.actor._client import shutdown_context
from roost.actor._context import (
    Context,
    context,
    current_actor_name,
    current_rank,
    current_size,
)
from roost.actor._controllers import get_or_spawn_controller
from roost.actor._endpoint import (
    Endpoint,
    EndpointProperty,
    as_endpoint,
    concurrent_endpoint,
    endpoint,
    send,
)
from roost.actor._failure import MeshFailure, default_fault_hook
from roost.actor._future import Future
from roost.actor._host_mesh import HostMesh, this_host
from roost.actor._instance import ProcId, Uid
from roost.actor._proc_mesh import (
    ProcMesh,
    get_active_proc_meshes,
    register_proc_mesh_spawn_callback,
    this_proc,
    unregister_proc_mesh_spawn_callback,
)
from roost.actor._receiver import PortReceiver
from roost.actor._returns_future import returns_future
from roost.actor._transport import ChannelTransport, enable_transport
from roost.actor._value_mesh import ValueMesh
from roost.actor._workers import (
    WorkerLoop,
    run_worker_loop_forever,
    run_worker_loop_until_shutdown,
    start_worker_loop_forever,
)
from roost.errors import (
    ActorError,
    ActorStoppedError,
    DeadlockError,
    HostError,
    SerializationError,
    SpawnError,
    SupervisionError,
    UndeliverableError,
)

unhandled_fault_hook = default_fault_hook

__all__ = [
    "Accumulator",
    "Actor",
    "ActorError",
    "ActorMesh",
    "ActorStoppedError",
    "BootstrapCommand",
    "Channel",
    "ChannelTransport",
    "Context",
    "DeadlockError",
    "Endpoint",
    "EndpointProperty",
    "Extent",
    "Future",
    "HostError",
    "HostMesh",
    "MeshFailure",
    "NDSlice",
    "Point",
    "Port",
    "PortReceiver",
    "ProcId",
    "ProcMesh",
    "Region",
    "SerializationError",
    "Shape",
    "Slice",
    "SpawnError",
    "SupervisionError",
    "Uid",
    "UndeliverableError",
    "ValueMesh",
    "WorkerLoop",
    "as_endpoint",
    "attach_to_workers",
    "concurrent_endpoint",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "default_bootstrap_cmd",
    "enable_transport",
    "endpoint",
    "get_active_proc_meshes",
    "get_or_spawn_controller",
    "hosts_from_config",
    "register_proc_mesh_spawn_callback",
    "returns_future",
    "run_worker_loop_forever",
    "run_worker_loop_until_shutdown",
    "send",
    "shutdown_context",
    "start_worker_loop_forever",
    "this_host",
    "this_proc",
    "unhandled_fault_hook",
    "unregister_proc_mesh_spawn_callback",
]
