"""Actors whose endpoints are plain functions: each has a thread, and all its code runs there."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from roost.actor._actor import supervise_of
from roost.actor._context import Context, set_context
from roost.actor._reports import show_banner
from roost.actor._runner import OK, RAISED, Runner, rank_in_message, stop_request
from roost.actor._timers import at

if TYPE_CHECKING:
    from collections.abc import Callable

_BATCH = 64


class SyncRunner(Runner):
    """Takes messages in batches, handles them one by one."""

    def _run(self) -> None:
        self.thread_id = threading.get_ident()
        self.mailbox.read_by_thread()
        set_context(self._idle_context)
        try:
            self._construct()
            while self.doom is None and not self.ended.is_set():
                batch = self.mailbox.take(_BATCH)
                batch.reverse()
                while batch and self.doom is None and not self.ended.is_set():
                    self._handle(batch.pop())
                for message in reversed(batch):
                    self.refuse(message)
        finally:
            if not self.ended.is_set():
                self._die(self.doom or RuntimeError(f"the thread of {self.name} has ended"))

    def _construct(self) -> None:
        spec, request = self._spec, self._spawn_request
        try:
            cls = spec["class"]
            self.instance = cls.__new__(cls)
            self.instance.__init__(*spec["args"], **spec["kwargs"])
            request.reply(OK, b"")
        except BaseException as error:
            body, buffers = self.report(error, None)
            self.fail(error, starting=True)
            request.reply(RAISED, body, buffers)
            self.doom = error

    def _handle(self, message: Any) -> None:
        _, meta, _, _, request, source = message
        if meta[:1] == b"!":
            self._control(meta, message)
            return
        if request is not None and request.is_cancelled:
            return
        prepared = self._table.get(meta)
        try:
            if prepared is None:
                prepared = self.prepare(meta)
            set_context(Context(self.view, prepared.extent, rank_in_message(source), request))
            args, kwargs = self.arguments(prepared, message)
            value = prepared.function(*args, **kwargs)
            if prepared.asynchronous:
                raise TypeError(
                    f"{self.name}.{prepared.name} is async def, but the endpoints of its class are not"
                )
            self.answer(prepared, message, value)
        except BaseException as error:
            self.failed_message(prepared, message, error)
        finally:
            set_context(self._idle_context)
        if self._leaving is not None or self.mailbox.has_urgent:
            self._between()

    def _control(self, meta: bytes, message: Any) -> None:
        if meta == b"!stop":
            reason, request = stop_request(message)
            self._stop(reason, request)
        elif meta == b"!wake":
            self._between()

    def _between(self) -> None:
        """Between two messages: failures of owned meshes, and the wish to leave."""
        self.mailbox.take_urgent()
        while self._failures and self.doom is None:
            self._supervise()
        if self.doom is None and self._leaving is not None:
            what, reason = self._leaving
            if what == "stop":
                self._stop(reason, None)
            else:
                self.doom = RuntimeError(f"{self.name} was aborted: {reason}")

    def handle_urgent(self) -> None:
        """A wait of this actor was interrupted: failures of owned meshes are handled at once."""
        self.mailbox.take_urgent()
        if self._dying:
            return  # what it owns has to end before it does, whatever else fails meanwhile
        while self._failures and self.doom is None:
            self._supervise()
        if self.doom is not None:
            raise self.doom

    def _supervise(self) -> None:
        failure = self._failures.popleft()
        method = supervise_of(self.instance)
        try:
            handled = method(failure) if method is not None else None
        except BaseException as error:
            self.escalate(failure, error)
            return
        if not handled:
            self.escalate(failure, None)

    def _clean(self, error: BaseException | None) -> BaseException | None:
        method = getattr(self.instance, "__cleanup__", None)
        if method is None:
            return None
        try:
            method(error)
        except BaseException as raised:
            raised.__cause__ = raised.__cause__ or error
            return raised
        return None

    def _stop(self, reason: str, request: Any) -> None:
        self.stop_owned(reason)
        self._bound_cleanup(lambda: self.leave(reason, request, None))
        error = self._clean(None)
        self.leave(reason, request, error)

    def _bound_cleanup(self, leave: Callable[[], None]) -> None:
        """A thread cannot be stopped: when ``__cleanup__`` takes too long the actor ends without it."""
        if getattr(self.instance, "__cleanup__", None) is None:
            return
        limit = self.runtime.cleanup_timeout_s

        def give_up() -> None:
            if not self.ended.is_set():
                show_banner(f"roost: __cleanup__ of {self.label} has not ended within {limit} s; left alone")
                leave()

        at(time.monotonic() + limit, give_up)

    def _die(self, error: BaseException) -> None:
        set_context(self._idle_context)
        starting = self._failing
        self._dying = True
        self.stop_owned(f"its owner {self.name} has failed")
        if not starting and self.instance is not None:
            self._bound_cleanup(lambda: self._fail_and_end(error))
            error = self._clean(error) or error
        self._fail_and_end(error)

    def _fail_and_end(self, error: BaseException) -> None:
        self.fail(error)
        self._end()
