"""A process that roost has started: forked by the host agent, or a command that the agent ran."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from roost import config
from roost.actor._owned import SYSTEM_BOX
from roost.actor._runtime import Runtime, set_runtime

if TYPE_CHECKING:
    from roost.actor._failure import Obituary


class WorkerRuntime(Runtime):
    """The runtime of a started process; its main thread serves it."""

    def agent_lost(self, obituary: Obituary) -> None:
        # The owner of everything here is gone, and nobody is left to hear of an end in good order.
        os._exit(70)

    def close_process(self, code: int) -> None:
        import atexit

        self.is_closing = True
        try:
            atexit._run_exitfuncs()
        finally:
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except Exception:
                    continue
            self.node.flush(1.0)
            os._exit(code)


def run(spec: dict[str, Any], rank: int, agent: tuple[int, int], agent_socket: int) -> None:
    """Runs a worker to its end. Never returns."""
    from roost.actor._logs import install_worker_streams

    config.inherit(spec["config"])
    runtime = WorkerRuntime(
        (spec["mesh"], rank),
        agent,
        tuple(spec["root"]),
        name=spec["name"],
        log_box=spec["log_box"],
    )
    runtime.owners[0] = _NoOwner()
    runtime.address = spec["address"]
    set_runtime(runtime)
    install_worker_streams()
    threading.current_thread().name = "roost-runtime"
    runtime.node.start_backup()
    runtime.node.adopt(agent, agent_socket)
    runtime.node.cast(runtime.node.target(SYSTEM_BOX, [agent]), b"ready", b"")
    runtime.serve()
    threading.Event().wait()


class _NoOwner:
    """Owner of what a worker makes outside any actor, such as in a bootstrap function."""

    box = 0

    def __init__(self) -> None:
        self.owned: list[Any] = []

    def describe(self) -> str:
        return "<worker>"

    def post_failure(self, failure: Any) -> None:
        from roost.actor._reports import show_banner

        show_banner(f"roost: nobody owns this failure: {failure.report()}")


def main() -> None:
    """Entry point of a process that was started by a command instead of a fork."""
    import pickle

    link, orders = (int(fd) for fd in os.environ.pop("ROOST_WORKER_FDS").split(","))
    with open(orders, "rb") as file:
        spec, rank, agent = pickle.load(file)
    from roost.actor._agent import enter

    enter(spec, rank)
    run(spec, rank, agent, link)
