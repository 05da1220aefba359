"""`Accumulator`: the answers of a mesh, folded into one value as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from roost.actor._future import Future, Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from roost.actor._endpoint import Endpoint

A = TypeVar("A")
R = TypeVar("R")


class Accumulator(Generic[A, R]):
    """Folds the answers of an endpoint, in the order in which they come.

    Args:
        endpoint: what to call.
        identity: the value to start from. It is used again for each call, so ``combine`` must not change it.
        combine: makes of the value so far and one answer the next value.

    Example:
        >>> import operator
        >>> from roost.actor import Accumulator, Actor, endpoint, this_host
        >>> class Counter(Actor):
        ...     @endpoint
        ...     def count(self) -> int:
        ...         return 2
        >>> counters = this_host().spawn_procs({"gpus": 3}).spawn("counters", Counter)
        >>> Accumulator(counters.count, 0, operator.add).accumulate().get()
        6
    """

    def __init__(self, endpoint: Endpoint[Any, R], identity: A, combine: Callable[[A, R], A]) -> None:
        self._endpoint = endpoint
        self._identity = identity
        self._combine = combine

    def accumulate(self, *args: Any, **kwargs: Any) -> Future[A]:
        """Calls all ranks of the endpoint's mesh.

        Returns:
            A future of the folded value. It raises what the first failed rank raised, or what ``combine``
            raised.

        Raises:
            TypeError: the arguments do not fit the endpoint, or cannot be sent.
        """
        futures = list(self._endpoint.stream(*args, **kwargs))
        return Future._of(_Fold(futures, self._identity, self._combine))


class _Fold(Source):
    """Ready when the last answer is; folds whoever looks first."""

    __slots__ = ("_combine", "_futures", "_identity", "_last")

    def __init__(self, futures: list[Future[Any]], identity: Any, combine: Callable[[Any, Any], Any]) -> None:
        self._futures = futures
        self._identity = identity
        self._combine = combine
        self._last = futures[-1]._source

    def wait(self, timeout: float | None, mailbox: Any) -> int:
        return self._last.wait(timeout, mailbox)

    def is_ready(self) -> bool:
        return self._last.is_ready()

    def ring(self, bell: Any, token: int) -> None:
        self._last.ring(bell, token)

    def cancel(self) -> bool:
        self._last.cancel_all()  # type: ignore[attr-defined]
        return True

    def check(self, blocking: bool) -> None:
        self._last.check(blocking)

    def result(self) -> Any:
        value = self._identity
        for future in self._futures:
            future._seen = True
        for future in self._futures:
            value = self._combine(value, future.get())
        return value
