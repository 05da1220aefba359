"""Coroutine functions as functions that return a `Future`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from roost import _core
from roost.actor._future import Future, Promise, running_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

P = ParamSpec("P")
R = TypeVar("R")


def returns_future(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Future[R]]:
    """Makes of an ``async def`` a function whose result is a `Future`.

    The coroutine begins when the future is first waited for: in the event loop that awaits it, or, for
    ``get()``, in a loop of its own in the calling thread. A ``get`` whose timeout is over before the end
    cancels the coroutine for good.

    Example:
        >>> from roost.actor import returns_future
        >>> @returns_future
        ... async def answer() -> int:
        ...     return 42
        >>> answer().get()
        42
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Future[R]:
        future: Future[R] = Future._of(_Lazy(function(*args, **kwargs)))
        return future

    return call


class _Lazy(Promise):
    """A promise that its first observer fulfils."""

    __slots__ = ("_coroutine", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        super().__init__()
        self._coroutine: Coroutine[Any, Any, Any] | None = coroutine
        self._task: Any = None

    def _claim(self) -> Coroutine[Any, Any, Any] | None:
        with self._condition:
            coroutine, self._coroutine = self._coroutine, None
            return coroutine

    def wait(self, timeout: float | None, mailbox: Any) -> int:
        coroutine = self._claim()
        if coroutine is None:
            return super().wait(timeout, mailbox)
        import asyncio

        async def bounded() -> Any:
            async with asyncio.timeout(timeout):
                return await coroutine

        try:
            self.set(self._run(bounded()))
        except BaseException as error:
            self.set(error=error)
        return _core.READY

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        import asyncio

        if running_loop() is None:
            return asyncio.run(coroutine)
        # get() inside a loop blocks it, so the coroutine needs a loop in another thread.
        import contextvars
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(contextvars.copy_context().run, asyncio.run, coroutine).result()

    def ring(self, bell: Any, token: int) -> None:
        coroutine = self._claim()
        if coroutine is not None:
            self._task = running_loop().create_task(self._drive(coroutine))
        super().ring(bell, token)

    async def _drive(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        try:
            self.set(await coroutine)
        except BaseException as error:
            self.set(error=error)

    def __del__(self) -> None:
        coroutine = getattr(self, "_coroutine", None)
        if coroutine is not None:
            coroutine.close()
