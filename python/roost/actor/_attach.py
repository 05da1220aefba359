"""Attaching hosts that run already: their agents are dialled, and become a mesh."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from roost._shape import Region, Slice
from roost.actor._addresses import to_dial
from roost.actor._door import pulse
from roost.actor._future import Future, Promise
from roost.actor._host_mesh import HostMesh
from roost.actor._keys import find_key
from roost.actor._owned import SYSTEM_BOX, ControlSource
from roost.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Attachment:
    """The hosts behind a mesh, from the dialling on."""

    def __init__(self, workers: Sequence[Any], ca: object, private_key: object) -> None:
        self._workers = list(workers)
        self._ca, self._private_key = ca, private_key
        self._found: tuple[list[tuple[int, int]], list[str]] | None = None
        self._error: BaseException | None = None
        self._done = Promise()
        self._future: Future[Any] = Future._of(self._done)
        self._future._seen = True
        self._stopped: Future[None] | None = None

    def begin(self) -> None:
        """Dials all hosts, in the background."""
        threading.Thread(target=self._run, name="roost-attach", daemon=True).start()

    def _run(self) -> None:
        try:
            self._found = self._dial()
            self._done.set(True)
        except BaseException as error:
            self._error = error
            self._done.set(error=error)

    def _dial(self) -> tuple[list[tuple[int, int]], list[str]]:
        from roost.actor._runtime import runtime

        here = runtime()
        given = [one.get() if isinstance(one, Future) else one for one in self._workers]
        dialled = [to_dial(one) for one in given]
        key = find_key(dialled, self._ca, self._private_key)
        target = here.node.target(SYSTEM_BOX, [here.agent])
        calls = []
        for address in dialled:
            order = json.dumps({"address": address, "key": key, "pulse": pulse()}).encode()
            calls.append(here.node.call(target, b"dial", order))
        agents = []
        for shown, address, call in zip(given, dialled, calls, strict=True):
            answer = Future._of(ControlSource(call, 1, _read)).get()
            if not answer["agent"]:
                raise HostError(shown, answer["kind"], answer["why"])
            agents.append((answer["agent"], 0))
            here.node.learn_proc(agents[-1], agents[-1][0], address)
        return agents, dialled

    def hosts(self) -> tuple[list[tuple[int, int]], list[str]]:
        """Agents and addresses; waits for the hosts to answer.

        Raises:
            HostError: one did not.
        """
        if self._found is None:
            self._future.get()
            assert self._found is not None
        return self._found

    def initialized(self) -> Future[Any]:
        """Done when all hosts have answered."""
        return self._future

    def shutdown(self) -> Future[None]:
        """Stops what runs on the hosts, then the hosts."""
        if self._stopped is None:
            promise = Promise()
            self._stopped = Future._of(promise)
            self._stopped._seen = True
            threading.Thread(target=self._end, args=(promise,), name="roost-shutdown", daemon=True).start()
        return self._stopped

    def _end(self, promise: Promise) -> None:
        from roost.actor._runtime import runtime

        here = runtime()
        try:
            agents, _ = self.hosts()
            here.stop_on(agents).get()
            target = here.node.target(SYSTEM_BOX, agents)
            call = here.node.call(target, b"shutdown", f"by {here.proc_name}".encode())
            call.wait(len(agents), here.stop_grace_s)
            promise.set()
        except BaseException as error:
            promise.set(error=error)


def _read(answers: list[Any]) -> Any:
    _, status, body, _ = answers[0]
    if status != 0:
        return {"agent": 0, "kind": "broken", "why": "the host agent of this program has died"}
    return json.loads(bytes(body))


def attach_to_workers(
    *,
    workers: Sequence[str | Future[str]],
    ca: object = None,
    private_key: object = None,
    name: str | None = None,
) -> HostMesh:
    """Makes a mesh of hosts on which `run_worker_loop_forever` or ``roost host`` runs.

    Returns at once; the hosts are dialled in the background, and the first use waits for them.

    Args:
        workers: their addresses, or futures of them.
        ca: a cluster key other than this user's, as a path or as bytes; ``"trust_all_connections"`` stands
            for the usual one.
        private_key: the key's private half, when ``ca`` has the certificate alone.
        name: for people.

    Returns:
        Hosts in one dimension, ``hosts``. The handle owns them: `HostMesh.shutdown` ends them.

    Raises:
        ValueError: there is no address, or one that is none.
    """
    if isinstance(workers, str) or not workers:
        raise ValueError(f"workers is a list of addresses, not {workers!r}")
    for one in workers:
        if isinstance(one, str):
            from roost.actor._addresses import split

            split(one)
    attachment = Attachment(workers, ca, private_key)
    size = len(attachment._workers)
    mesh = HostMesh([], Region(["hosts"], Slice.new_row_major([size])), attachment=attachment)
    mesh._is_owned = True
    attachment.begin()
    return mesh


def hosts_from_config(name: str) -> HostMesh:
    """The hosts that the configuration file lists under a name.

    The file (``ROOST_CONFIG``, or ``~/.config/roost/config.toml``) has a table ``[hosts]`` of names and
    lists of addresses. A name that it does not have stands for two local hosts, which end with this program.
    """
    from roost import config
    from roost.actor._transport import fresh_address
    from roost.actor._workers import start_worker_loop_forever

    listed = config.hosts(name)
    if listed:
        return attach_to_workers(workers=listed, name=name)
    started = [start_worker_loop_forever(address=fresh_address()) for _ in range(2)]
    mesh = attach_to_workers(workers=[one.address for one in started], name=name)
    _local.extend(started)
    return mesh


_local: list[Any] = []
