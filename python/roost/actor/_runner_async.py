"""Actors whose endpoints are ``async def``: each has an event loop, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

from roost.actor._actor import supervise_of
from roost.actor._bells import bell_of, drop_bell
from roost.actor._context import Context, set_context
from roost.actor._endpoint import is_async
from roost.actor._failure import closed_reason
from roost.actor._loop import new_loop
from roost.actor._reports import show_banner
from roost.actor._runner import (
    CLOSED,
    OK,
    RAISED,
    ActorFailed,
    Prepared,
    Runner,
    rank_in_message,
    stop_request,
)

_BATCH = 64


class AsyncRunner(Runner):
    """One task takes the messages; sequential endpoints run inside it, concurrent ones beside it."""

    def _run(self) -> None:
        self.thread_id = threading.get_ident()
        loop = new_loop(self.node)
        asyncio.set_event_loop(loop)
        self._loop = loop
        self._wakeup: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._watchers: set[asyncio.Task[None]] = set()
        set_context(self._idle_context)
        # For what the engine's bell starts, whose callbacks run in no actor's context.
        self._own_context = contextvars.copy_context()
        try:
            bell = bell_of(loop)
            self.mailbox.read_by_loop(bell.bell, bell.standing(self._ring))
            self._main = loop.create_task(self._life())
            loop.run_until_complete(self._main)
        except BaseException as error:
            if not self.ended.is_set():
                self.fail(self.doom or error)
        finally:
            if not self.ended.is_set():
                self._end()
            self._close(loop)

    def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            drop_bell(loop)
            loop.close()

    def _ring(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)
        elif self.mailbox.has_urgent and self.doom is None:
            watcher = self._loop.create_task(self._between(), context=self._own_context)
            self._watchers.add(watcher)
            watcher.add_done_callback(self._watchers.discard)

    async def _life(self) -> None:
        try:
            await self._construct()
            while self.doom is None and not self.ended.is_set():
                batch = self.mailbox.take(_BATCH, 0.0)
                if not batch:
                    self._wakeup = self._loop.create_future()
                    if self.mailbox.depth == 0:
                        await self._wakeup
                    self._wakeup = None
                    continue
                batch.reverse()
                while batch and self.doom is None and not self.ended.is_set():
                    await self._handle(batch.pop())
                for message in reversed(batch):
                    self.refuse(message)
        except asyncio.CancelledError:
            if self.doom is None:
                raise
        if not self.ended.is_set():
            await self._die(self.doom or RuntimeError(f"{self.name} has ended"))

    async def _construct(self) -> None:
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

    async def _handle(self, message: Any) -> None:
        _, meta, _, _, request, source = message
        if meta[:1] == b"!":
            await self._control(meta, message)
            return
        if request is not None and request.is_cancelled:
            return
        prepared = self._table.get(meta)
        try:
            if prepared is None:
                prepared = self.prepare(meta)
            set_context(Context(self.view, prepared.extent, rank_in_message(source), request))
            args, kwargs = self.arguments(prepared, message)
            if prepared.concurrent:
                task = self._loop.create_task(self._beside(prepared, message, args, kwargs))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                # Its first step runs before the next message is looked at: calls start in order.
                await asyncio.sleep(0)
                return
            value = prepared.function(*args, **kwargs)
            if prepared.asynchronous:
                value = await value
            self.answer(prepared, message, value)
        except asyncio.CancelledError as error:
            if self.doom is not None:
                self.failed_message(prepared, message, ActorFailed(str(self.doom)))
                raise
            self.failed_message(prepared, message, RuntimeError(f"the endpoint was cancelled: {error}"))
        except BaseException as error:
            self.failed_message(prepared, message, error)
        finally:
            set_context(self._idle_context)
        if self._leaving is not None or self.mailbox.has_urgent:
            await self._between()

    async def _beside(self, prepared: Prepared, message: Any, args: Any, kwargs: Any) -> None:
        try:
            value = await prepared.function(*args, **kwargs)
            self.answer(prepared, message, value)
        except asyncio.CancelledError:
            request = message[4]
            if request is not None:
                reason = closed_reason("stopped", f"{self.name} ended while this call ran")
                request.reply(CLOSED, reason)
        except BaseException as error:
            self.failed_message(prepared, message, error)
            if self.doom is not None:
                self._main.cancel()

    async def _control(self, meta: bytes, message: Any) -> None:
        if meta == b"!stop":
            reason, request = stop_request(message)
            await self._stop(reason, request)
        elif meta == b"!wake":
            await self._between()

    async def _between(self) -> None:
        self.mailbox.take_urgent()
        while self._failures and self.doom is None:
            await self._supervise()
        if self.doom is not None:
            if asyncio.current_task() is not self._main:
                self._main.cancel()
            return
        if self._leaving is not None and asyncio.current_task() is self._main:
            what, reason = self._leaving
            if what == "stop":
                await self._stop(reason, None)
            else:
                self.doom = RuntimeError(f"{self.name} was aborted: {reason}")

    def handle_urgent(self) -> None:
        """A blocking wait inside the loop's thread: failures are handled when the loop runs again."""
        self.mailbox.take_urgent()
        self._loop.call_soon(self._ring_later)

    def _ring_later(self) -> None:
        watcher = self._loop.create_task(self._between(), context=self._own_context)
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)

    def is_busy(self) -> bool:
        if self.thread_id != threading.get_ident():
            return False
        try:
            return asyncio.current_task() is self._main
        except RuntimeError:
            return False

    async def _supervise(self) -> None:
        failure = self._failures.popleft()
        method = supervise_of(self.instance)
        try:
            handled: Any = method(failure) if method is not None else None
            if method is not None and is_async(method):
                handled = await handled
        except BaseException as error:
            self.escalate(failure, error)
            return
        if not handled:
            self.escalate(failure, None)

    async def _clean(self, error: BaseException | None) -> BaseException | None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self.runtime.cleanup_timeout_s)
        method = getattr(self.instance, "__cleanup__", None)
        if method is None:
            return None
        try:
            ended = method(error)
            if is_async(method):
                await self._bounded(ended)
        except BaseException as raised:
            raised.__cause__ = raised.__cause__ or error
            return raised
        return None

    async def _bounded(self, cleanup: Any) -> None:
        """Awaits ``__cleanup__``, and goes on without it when it takes too long."""
        limit = self.runtime.cleanup_timeout_s
        task = asyncio.ensure_future(cleanup)
        done, _ = await asyncio.wait([task], timeout=limit)
        if done:
            task.result()
        else:
            task.cancel()
            show_banner(f"roost: __cleanup__ of {self.label} has not ended within {limit} s; left alone")

    async def _stop(self, reason: str, request: Any) -> None:
        await asyncio.to_thread(self.stop_owned, reason)
        error = await self._clean(None)
        self.leave(reason, request, error)

    async def _die(self, error: BaseException) -> None:
        starting = self._failing
        await asyncio.to_thread(self.stop_owned, f"its owner {self.name} has failed")
        if not starting and self.instance is not None:
            error = await self._clean(error) or error
        self.fail(error)
        self._end()
