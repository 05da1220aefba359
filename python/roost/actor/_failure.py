"""Failures: what has died, where and why, and who has to know."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from roost import config
from roost._shape import Extent, Point
from roost.errors import ActorStoppedError, SupervisionError

if TYPE_CHECKING:
    from roost.actor._endpoint import Endpoint

__all__ = ["MeshFailure"]


class MeshFailure:
    """A rank of a mesh has failed. The mesh's owner gets it, in ``__supervise__``.

    Attributes:
        mesh: handle of the mesh, as its owner holds it.
        mesh_name: the name that the mesh was made with.
        rank: number of the rank that failed.
        point: its coordinates.
        host: name of the host that it ran on.
        cause: the exception that killed it, if one did.
        exit_code: of its process, if the process has ended by itself.
        signal: that killed its process, if one did.
        stderr_tail: the last lines that its process wrote to stderr.
    """

    __slots__ = (
        "cause",
        "exit_code",
        "host",
        "mesh",
        "mesh_name",
        "pid",
        "point",
        "rank",
        "signal",
        "stderr_tail",
        "what",
    )

    def __init__(
        self,
        mesh_name: str,
        *,
        rank: int,
        point: Point,
        what: str,
        mesh: Any = None,
        host: str = "",
        pid: int = 0,
        cause: BaseException | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
        stderr_tail: str = "",
    ) -> None:
        self.mesh_name = mesh_name
        self.mesh = mesh
        self.rank = rank
        self.point = point
        self.what = what
        self.host = host
        self.pid = pid
        self.cause = cause
        self.exit_code = exit_code
        self.signal = signal
        self.stderr_tail = stderr_tail

    def report(self) -> str:
        """What happened, for people."""
        lines = [f"rank {self.rank} {dict(self.point.items())} of mesh {self.mesh_name!r} {self.what}"]
        if self.host or self.pid:
            lines[0] += f" (host {self.host}, process {self.pid})"
        if self.cause is not None:
            formatted = getattr(self.cause, "exception_formatted", "")
            lines.append(formatted.rstrip() or f"{type(self.cause).__name__}: {self.cause}")
        if self.stderr_tail:
            lines.append("last lines of its stderr:")
            lines += [f"    {line}" for line in last_lines(self.stderr_tail)]
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"MeshFailure(mesh_name={self.mesh_name}, crashed_ranks=[{self.rank}], event={self.report()})"

    __repr__ = __str__

    def __reduce__(self) -> Any:
        fields = {name: getattr(self, name) for name in self.__slots__ if name not in ("mesh", "cause")}
        name = fields.pop("mesh_name")
        return _rebuild_failure, (name, fields, None if self.cause is None else repr(self.cause))


def _rebuild_failure(name: str, fields: dict[str, Any], cause: str | None) -> MeshFailure:
    failure = MeshFailure(name, **fields)
    if cause is not None:
        failure.cause = RuntimeError(cause)
    return failure


class Obituary:
    """Why a process has ended, as its host agent saw it."""

    __slots__ = ("exit_code", "expected", "host", "pid", "signal", "stderr_tail", "why")

    def __init__(self, raw: bytes) -> None:
        self.pid, self.host, self.stderr_tail = 0, "", ""
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.expected = False
        self.why = ""
        if raw.startswith(b"{"):
            told = json.loads(raw)
            self.pid, self.host = told["pid"], told["host"]
            self.exit_code, self.signal = told.get("exit_code"), told.get("signal")
            # Without the marks of the actors that wrote the lines.
            self.stderr_tail = re.sub("\x1eactor [^\x1e]*\x1e", "", told.get("stderr_tail", ""))
            self.why = told.get("why", "")
            self.expected = told.get("expected", False)
        elif raw.startswith(b"lost:"):
            self.why = raw[5:].decode(errors="replace")
        elif raw.startswith(b"unknown:"):
            self.why = "its host agent does not know it; it was stopped, or never started"

    def what(self) -> str:
        """The end of a sentence that starts with the name of the process."""
        reason = f": {self.why}" if self.why else ""
        if self.signal is not None:
            return f"was killed by signal {self.signal} ({signal_name(self.signal)}){reason}"
        if self.exit_code is not None:
            return f"exited with code {self.exit_code}{reason}"
        return f"is gone{reason}"


def last_lines(tail: str) -> list[str]:
    """As many of the last lines as the settings say."""
    most = config.get("tail_log_lines")
    return tail.splitlines()[-most:] if most else []


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def supervision_error(
    endpoint: Endpoint[Any, Any] | None, rank: int, status: int, body: bytes
) -> SupervisionError:
    """The error for a call whose actor is closed (2), whose process is dead (3), or who is unknown (4)."""
    name = "the call" if endpoint is None else endpoint._full_name
    where = ""
    point: dict[str, int] = {}
    mesh = None
    if endpoint is not None:
        mesh = endpoint._mesh
        extent: Extent = mesh.extent
        point = dict(Point(rank, extent).items())
        where = f" on rank {rank} {point}" if point else ""
    if status == 3:
        obituary = Obituary(body)
        if obituary.expected:
            return ActorStoppedError(
                f"{name}{where}: the process was stopped: {obituary.why}", endpoint=name, rank=point
            )
        who = f"the process {obituary.pid} on host {obituary.host}" if obituary.pid else "its process"
        text = f"{name}{where}: {who} {obituary.what()}"
        if obituary.stderr_tail:
            text += "\nlast lines of its stderr:\n" + "\n".join(last_lines(obituary.stderr_tail))
        failure = None
        if mesh is not None:
            failure = MeshFailure(
                mesh._name,
                rank=rank,
                point=Point(rank, mesh.extent),
                what=obituary.what(),
                mesh=mesh,
                host=obituary.host,
                pid=obituary.pid,
                exit_code=obituary.exit_code,
                signal=obituary.signal,
                stderr_tail=obituary.stderr_tail,
            )
        return SupervisionError(text, endpoint=name, failure=failure, rank=point)
    if status == 4:
        return SupervisionError(
            f"{name}{where}: there is no such actor in its process; it was stopped long ago, or its spawn "
            "never arrived",
            endpoint=name,
            rank=point,
        )
    reason = json.loads(body) if body else {"kind": "stopped", "text": "stopped"}
    if reason["kind"] == "stopped":
        return ActorStoppedError(
            f"{name}{where}: the actor has status: stopped: {reason['text']}", endpoint=name, rank=point
        )
    return SupervisionError(
        f"{name}{where}: the actor has failed: {reason['text']}", endpoint=name, rank=point
    )


def closed_reason(kind: str, text: str) -> bytes:
    """What callers of a closed mailbox are told."""
    return json.dumps({"kind": kind, "text": text}).encode()


def default_fault_hook(failure: MeshFailure) -> None:
    """Ends the program: nobody has handled the failure."""
    raise SystemExit(1)
