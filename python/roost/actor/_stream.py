"""Answers one by one, in the order in which they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from roost._shape import Point
from roost.actor._calls import OK, CallSource, error_of
from roost.actor._future import Future
from roost.actor._serialize import load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from roost.actor._endpoint import Endpoint

R = TypeVar("R")


class StreamSource(CallSource):
    """The answer that comes as number ``n``."""

    __slots__ = ("_future", "_n")

    def __init__(self, endpoint: Endpoint[Any, Any], call: Any, n: int) -> None:
        super().__init__(endpoint, call)
        self._n = n
        self._future: Any = None

    @property
    def _need(self) -> int:
        return self._n + 1

    def _note_rank(self, rank: int) -> None:
        future = self._future()
        if future is not None:
            future._rank = Point(rank, self._endpoint._mesh.extent)

    def cancel(self) -> bool:
        # The others of the call are still wanted; the answer of this one is dropped.
        return True

    def cancel_all(self) -> None:
        """Nothing of the call is wanted any more."""
        self._call.cancel()

    def result(self) -> Any:
        answers = self._call.take(self._n, self._n + 1)
        if not answers:
            late = self._call.missing()
            position = self._n - (len(self._endpoint._mesh) - len(late))
            self._note_rank(late[position] if 0 <= position < len(late) else 0)
            raise self._missing()
        rank, status, body, buffers = answers[0]
        self._note_rank(rank)
        if status == OK:
            return load(body, buffers)
        raise error_of(self._endpoint, rank, status, body, buffers)


class ValueStream(Generic[R]):
    """Exactly one future a rank, in the order of completion. Iterates once, with ``for`` or ``async for``."""

    def __init__(self, futures: list[Future[R]]) -> None:
        self._futures = iter(futures)
        self._size = len(futures)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Future[R]]:
        return self

    def __next__(self) -> Future[R]:
        return next(self._futures)

    def __aiter__(self) -> AsyncIterator[Future[R]]:
        return self

    async def __anext__(self) -> Future[R]:
        future = next(self._futures, None)
        if future is None:
            raise StopAsyncIteration
        return future


def stream_all(endpoint: Endpoint[Any, Any], packed: Any) -> ValueStream[Any]:
    """Calls all ranks of the endpoint's mesh."""
    import weakref

    body, buffers = packed
    mesh = endpoint._mesh
    call = mesh._node.call(mesh._target, endpoint._meta(), body, buffers, stream=True)
    futures = []
    for n in range(len(mesh)):
        source = StreamSource(endpoint, call, n)
        future = Future._of(source)
        source._future = weakref.ref(future)
        futures.append(future)
    return ValueStream(futures)
