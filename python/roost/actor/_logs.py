"""What workers print, at the controller: prefixed, and identical lines of many ranks folded into one."""

from __future__ import annotations

import io
import json
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from roost import config
from roost.actor._future import Future
from roost.actor._owned import SYSTEM_BOX, ControlSource, check_answers
from roost.actor._serialize import dump

if TYPE_CHECKING:
    from roost.actor._client import ClientRuntime
    from roost.actor._proc_mesh import ProcMesh
    from roost.actor._runtime import Runtime

_MARK = rb"\x1eactor ([^\x1e]*)\x1e"
"""Before the text of an actor: a record separator, which text does not have, and a word against chance."""


class LogReader:
    """Reads the lines of all workers in a thread, and writes them to this program's own streams."""

    def __init__(self, mailbox: Any) -> None:
        self.mailbox = mailbox
        self.options: dict[int, tuple[bool, float | None]] = {}
        self._partial: dict[tuple[int, int, int], tuple[str, bytes]] = {}
        self._held: list[tuple[int, int, str, set[int], str]] = []
        self._same: dict[tuple[int, int, str, str], list[set[int]]] = {}
        self._due: float | None = None
        self._lock = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="roost-logs", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.mailbox.read_by_thread()
        while not self._closing:
            left = None if self._due is None else max(0.0, self._due - time.monotonic())
            self.mailbox.take(0, left, False)  # waits, and takes nothing
            with self._lock:
                messages = self.mailbox.take(256, 0.0)
                for message in messages:
                    self._take(message)
                if self._due is not None and time.monotonic() >= self._due:
                    self._show_held()
            if not messages and self.mailbox.is_closed:
                return

    def _take(self, message: Any) -> None:
        which, rank, name, mesh = json.loads(bytes(message[1]))
        key = (which, rank, mesh)
        data = bytes(message[2])
        *lines, rest = (self._partial.pop(key, ("", b""))[1] + data).split(b"\n")
        if rest and not data:
            lines.append(rest)  # the stream has ended
        elif rest:
            self._partial[key] = (name, rest)
        for line in lines:
            self._line(which, rank, name, mesh, line)

    def _line(self, which: int, rank: int, name: str, mesh: int, line: bytes) -> None:
        # Plain text, then the name of an actor and its text, and again where one has begun to write behind
        # somebody's line that had no end.
        plain, *marked = re.split(_MARK, line)
        if plain or not marked:
            self._text(which, rank, name, mesh, plain)
        for actor, text in zip(marked[::2], marked[1::2], strict=True):
            self._text(which, rank, actor.decode(errors="replace"), mesh, text)

    def _text(self, which: int, rank: int, actor: str, mesh: int, line: bytes) -> None:
        text = line.decode(errors="replace").rpartition("\r")[2]
        option = self.options.get(mesh)
        stream, window = option or (config.get("enable_log_forwarding"), config.get("log_window"))
        if not stream:
            return
        if window is None:
            self._show(which, actor, [rank], text)
            return
        same = self._same.setdefault((mesh, which, actor, text), [])
        # The first such line that this rank has not said yet; the second of one rank is a line of its own.
        ranks = next((ranks for ranks in same if rank not in ranks), None)
        if ranks is None:
            ranks = set()
            same.append(ranks)
            self._held.append((mesh, which, actor, ranks, text))
        ranks.add(rank)
        if self._due is None:
            self._due = time.monotonic() + window

    def _show_held(self, only: int | None = None) -> None:
        held, self._held, self._same = self._held, [], {}
        for one in held:
            mesh, which, actor, ranks, text = one
            if only is None or mesh == only:
                self._show(which, actor, sorted(ranks), text)
            else:
                self._held.append(one)
                self._same.setdefault((mesh, which, actor, text), []).append(ranks)
        if not self._held:
            self._due = None

    def show_now(self, mesh: int) -> None:
        """Shows what the processes of a mesh have printed, without waiting for more of the same."""
        with self._lock:
            for message in self.mailbox.take(1 << 20, 0.0):
                self._take(message)
            self._show_held(mesh)

    def _show(self, which: int, actor: str, ranks: list[int], text: str) -> None:
        stream = sys.stdout if which == 1 else sys.stderr
        prefix = f"[{actor} {fold_ranks(ranks)}] " if config.get("prefix_with_rank") else ""
        many = f"({len(ranks)} ranks) " if len(ranks) > 1 else ""
        try:
            stream.write(f"{prefix}{many}{text}\n")
            stream.flush()
        except Exception:
            return

    def flush(self) -> None:
        """Shows everything that has come, also unfinished lines."""
        with self._lock:
            for message in self.mailbox.take(1 << 20, 0.0):
                self._take(message)
            partial, self._partial = self._partial, {}
            for (which, rank, mesh), (name, rest) in partial.items():
                self._line(which, rank, name, mesh, rest)
            self._show_held()

    def close(self) -> None:
        """Shows the rest and ends the thread."""
        self._closing = True
        self.mailbox.close(4, b"")
        self._thread.join(1.0)
        self.flush()


def fold_ranks(ranks: list[int]) -> str:
    """Sorted ranks as ``0-3,7``."""
    parts: list[str] = []
    start = 0
    for number in range(1, len(ranks) + 1):
        if number == len(ranks) or ranks[number] != ranks[number - 1] + 1:
            first, last = ranks[start], ranks[number - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = number
    return ",".join(parts)


def drain(here: Runtime, timeout: float) -> None:
    """Waits until the host agent has handed on what its processes have printed."""
    call = here.node.call(here.node.target(0, [here.agent]), b"flushed?", b"")
    call.wait(1, timeout)
    here.logs.flush()


async def set_option(mesh: ProcMesh, stream: bool, window: float | None, level: int) -> None:
    """Sets how the output of a process mesh is shown."""
    from roost.actor._runtime import runtime

    if not isinstance(level, int) or not 0 <= level <= 255:
        raise ValueError(f"level is a number from 0 to 255, not {level!r}")
    if window is not None and window < 0:
        raise ValueError(f"aggregate_window_sec is a number of seconds, not {window!r}")
    if window is not None and not stream:
        raise RuntimeError("aggregate_window_sec needs stream_to_client=True")
    here: Any = runtime()
    body, buffers = dump((mesh._uid, stream, window))
    root = here.node.target(SYSTEM_BOX, [here.root])
    await Future._of(ControlSource(here.node.call(root, b"log", body, buffers), 1, check_answers))
    procs = here.node.target(SYSTEM_BOX, [(mesh._uid, rank) for rank in mesh._region.ranks()])
    body, buffers = dump(level)
    call = here.node.call(procs, b"log_level", body, buffers)
    await Future._of(ControlSource(call, len(mesh), check_answers))


def follow_notebook(here: ClientRuntime) -> None:
    """In IPython: what a cell's calls have printed is shown before the cell ends."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    if shell is not None:
        shell.events.register("post_run_cell", lambda result=None: drain(here, 1.0))


class _TaggedStream:
    """A worker's stdout or stderr: lines of an actor carry its name."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._at_start = True
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        from roost.actor._context import _current

        context = _current.get()
        if context is None or not text:
            with self._lock:
                self._at_start = text.endswith("\n") if text else self._at_start
                return int(self._stream.write(text))
        tag = f"\x1eactor {' '.join(context.actor_instance.name.split())}\x1e"
        with self._lock:
            out = tag + text if self._at_start else text
            self._at_start = out.endswith("\n")
            body = out[:-1] if self._at_start else out
            self._stream.write(body.replace("\n", "\n" + tag) + ("\n" if self._at_start else ""))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def install_worker_streams() -> None:
    """Makes the streams of a new worker unbuffered, and marks what actors write."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        # Nothing waits in a buffer when the process crashes.
        raw: Any = io.FileIO(fd, "w", closefd=False)
        text = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)
        tagged: Any = _TaggedStream(text)
        setattr(sys, name, tagged)
        setattr(sys, f"__{name}__", tagged)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    set_log_level(20)


def set_log_level(level: int) -> None:
    """Records of ``logging`` from this level on go to stderr, where the program has not said otherwise.

    This is the handler of last resort, so that ``logging.basicConfig`` and handlers work as ever.
    """
    import logging

    handler = logging.StreamHandler()  # sys.stderr of now, which has the tags
    handler.setLevel(level)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.lastResort = handler
