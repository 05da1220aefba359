"""Calls under way: from the engine's answers to values and errors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from roost import _core
from roost.actor._context import _current
from roost.actor._future import Future, Promise, Source
from roost.actor._serialize import Cell, load
from roost.errors import (
    ActorError,
    ActorStoppedError,
    DeadlockError,
    SupervisionError,
    actor_error_group,
    supervision_error_group,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.actor._endpoint import Endpoint

OK, RAISED, CLOSED, DEAD, UNKNOWN = range(5)


def error_of(
    endpoint: Endpoint[Any, Any] | None, rank: int, status: int, body: Any, buffers: Any
) -> Exception:
    """The exception for an answer that is not a value."""
    from roost.actor._failure import supervision_error
    from roost.actor._reports import load_report

    if endpoint is not None:
        from roost.actor._runtime import runtime

        mesh = endpoint._mesh
        box = None if status == DEAD else mesh._box
        runtime().saw_failure(mesh._procs._uid, mesh._region.ranks()[rank], box)
    if status == RAISED:
        return load_report(body, buffers, endpoint, rank)
    return supervision_error(endpoint, rank, status, bytes(body))


class CallSource(Source):
    """A call to one rank: its answer is the value."""

    __slots__ = ("_call", "_deadline", "_endpoint", "_rank")

    def __init__(self, endpoint: Endpoint[Any, Any], call: Any, rank: int = 0) -> None:
        self._call = call
        self._endpoint = endpoint
        self._rank = rank
        timeout = endpoint._timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def wait(self, timeout: float | None, mailbox: Any) -> int:
        if self._deadline is None:
            return self._call.wait(self._need, timeout, mailbox)  # type: ignore[no-any-return]
        left = max(0.0, self._deadline - time.monotonic())
        if timeout is None or left < timeout:
            end = self._call.wait(self._need, left, mailbox)
            if end == _core.TIMED_OUT:
                self._call.cancel()
                return _core.READY
            return end  # type: ignore[no-any-return]
        return self._call.wait(self._need, timeout, mailbox)  # type: ignore[no-any-return]

    @property
    def _need(self) -> int:
        return 1

    def is_ready(self) -> bool:
        if self._call.is_ready(self._need):
            return True
        if self._deadline is None or time.monotonic() < self._deadline:
            return False
        self._call.cancel()
        return True

    def ring(self, bell: Any, token: int) -> None:
        self._call.ring(self._need, bell, token)
        if self._deadline is not None:
            from roost.actor._timers import at

            at(self._deadline, self._expire)

    def _expire(self) -> None:
        if not self.is_ready():
            self._call.cancel()

    def cancel(self) -> bool:
        self._call.cancel()
        return True

    def check(self, blocking: bool) -> None:
        context = _current.get()
        if context is None:
            return
        runner = context.actor_instance._runner
        if runner is not None and runner.is_blocked_by(self._endpoint, self._ranks(), blocking):
            raise DeadlockError(
                f"{runner.label} waits for its own endpoint {self._endpoint._full_name}, which it can only "
                "handle when it has finished this one; call the method directly, or do not wait"
            )

    def _ranks(self) -> list[int]:
        """The ranks whose answers are missing."""
        return [self._rank + index for index in self._call.missing()]

    def awaited(self) -> list[tuple[int, int, int]]:
        endpoint = self._endpoint
        if endpoint._timeout is not None or endpoint._explicit or endpoint._is_concurrent:
            return []
        mesh = endpoint._mesh
        base = mesh._region.ranks()
        return [(mesh._procs._uid, base[rank], mesh._box) for rank in self._ranks()]

    def result(self) -> Any:
        answers = self._call.take(0, 1)
        if not answers:
            raise self._missing()
        _, status, body, buffers = answers[0]
        if status == OK:
            return load(body, buffers)
        error = error_of(self._endpoint, self._rank, status, body, buffers)
        if isinstance(error, SupervisionError):
            self._endpoint._mesh._note_failed(self._rank)
        raise error

    def _missing(self) -> Exception:
        endpoint, late = self._endpoint, self._ranks()
        which = f" on ranks {', '.join(map(str, late))}" if len(endpoint._mesh) > 1 and late else ""
        waited = f"{endpoint._full_name} did not answer within {endpoint._timeout} s{which}"
        return TimeoutError(f"{waited}; the call was cancelled")

    def has_failed(self) -> bool:
        """Whether the result, which is there, is an error."""
        return bool(self._call.has_failed)


class MeshCallSource(CallSource):
    """A call to all ranks of a mesh: a ValueMesh."""

    __slots__ = ()

    @property
    def _need(self) -> int:
        return len(self._endpoint._mesh)

    def result(self) -> Any:
        from roost.actor._value_mesh import ValueMesh

        endpoint = self._endpoint
        mesh = endpoint._mesh
        size = len(mesh)
        cells: list[Any] = [None] * size
        errors: list[tuple[int, Exception]] = []
        for rank, status, body, buffers in self._call.take(0, size):
            if status == OK:
                cells[rank] = Cell(body, buffers, load)
            else:
                errors.append((rank, error_of(endpoint, rank, status, body, buffers)))
        missing = [rank for rank, cell in enumerate(cells) if cell is None]
        if endpoint._partial:
            for rank, error in errors:
                cells[rank] = _Failed(error)
            for rank in missing:
                if cells[rank] is None:
                    cells[rank] = _Failed(self._missing())
        elif errors:
            raise _combine(endpoint, sorted(errors, key=lambda pair: pair[0]))
        elif missing:
            raise self._missing()
        return ValueMesh._from_lazy(mesh.extent, cells)


class _Failed:
    """The place of a failed rank in a partial ValueMesh."""

    __slots__ = ("_error",)

    def __init__(self, error: Exception) -> None:
        self._error = error

    def load(self) -> Exception:
        return self._error


def _combine(endpoint: Endpoint[Any, Any], errors: list[tuple[int, Exception]]) -> Exception:
    if len(errors) == 1:
        return errors[0][1]
    every = [error for _, error in errors]
    first = every[0]
    if all(isinstance(error, ActorStoppedError) for error in every):
        return first  # somebody has stopped the mesh: that is one event
    ranks = ", ".join(str(rank) for rank, _ in errors)
    message = f"Actor call {endpoint._full_name} failed on {len(errors)} ranks ({ranks}); the first: "
    if all(isinstance(error, ActorError) for error in every):
        raised = first.exception  # type: ignore[attr-defined]
        return actor_error_group(f"{message}{type(raised).__name__}: {raised}", every)
    lost = next(error for error in every if isinstance(error, SupervisionError))
    return supervision_error_group(message + str(lost).partition("\n")[0], every)


def call_single(
    endpoint: Endpoint[Any, Any], pick: Callable[[], tuple[Any, int]], packed: Any
) -> Future[Any]:
    """Sends to one rank of the endpoint's mesh, which ``pick`` gives with its target."""
    body, buffers = packed

    def start() -> Future[Any]:
        target, rank = pick()
        call = endpoint._mesh._node.call(target, endpoint._meta(), body, buffers, arg=rank + 1)
        return Future._of(CallSource(endpoint, call, rank))

    return call_again(endpoint, start) if endpoint._retries else start()


def call_all(endpoint: Endpoint[Any, Any], packed: Any) -> Future[Any]:
    """Sends to all ranks of the endpoint's mesh."""
    body, buffers = packed
    mesh = endpoint._mesh

    def start() -> Future[Any]:
        call = mesh._node.call(mesh._target, endpoint._meta(), body, buffers)
        return Future._of(MeshCallSource(endpoint, call))

    return call_again(endpoint, start) if endpoint._retries else start()


def call_again(endpoint: Endpoint[Any, Any], start: Callable[[], Future[Any]]) -> Future[Any]:
    """A call that is made again, up to ``endpoint._retries`` times, when what it was sent to has failed.

    The pauses between tries grow from 50 ms to 2 s, with a random part, so that many callers of one actor do
    not come back all at once.
    """
    import contextvars
    import random
    import threading

    promise = Promise()

    def work(current: Future[Any]) -> None:
        for number in range(endpoint._retries + 1):
            try:
                promise.set(current.get())
                return
            except ActorStoppedError as error:
                promise.set(error=error)
                return
            except SupervisionError as error:
                if number == endpoint._retries:
                    error.add_note(f"{endpoint._full_name} was tried {number + 1} times")
                    promise.set(error=error)
                    return
            except BaseException as error:
                promise.set(error=error)
                return
            time.sleep(min(2.0, 0.05 * 2**number) * random.uniform(0.5, 1.0))
            current = start()

    first = start()
    first._seen = True
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work, first), name="roost-retry", daemon=True).start()
    return Future._of(promise)


def tell_of_failures(endpoint: Endpoint[Any, Any], call: Any, size: int, first: int, port: Any) -> None:
    """Sends to ``port`` the errors of the ranks that cannot answer it themselves."""
    from roost.actor._bells import thread_bell
    from roost.actor._owned import ControlSource

    def look() -> None:
        for rank, status, body, buffers in call.take(0, size):
            if status != OK:
                port.exception(error_of(endpoint, first + rank, status, body, buffers))

    thread_bell().when_ready(ControlSource(call, size, lambda answers: None), look)
