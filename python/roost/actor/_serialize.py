"""Objects to bytes and back: pickle protocol 5, big buffers out of band.

Plain arguments go through C pickle; everything else through cloudpickle, which is imported on first use,
so that classes of ``__main__`` and of notebooks travel by value. Big ``bytes`` and tensors are turned into
buffers, which the engine moves through shared memory without pickling them.
"""

from __future__ import annotations

import pickle
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

from roost import _core
from roost.errors import ActorError, SerializationError, pack_exception, unpack_exception

if TYPE_CHECKING:
    from collections.abc import Callable

    Buffers = list[Any] | None
    Packed = tuple[bytes, Buffers]

_PLAIN = frozenset({int, float, str, bool, type(None)})
_BIG_BYTES = 64 << 10
_unpickle_lock = threading.RLock()
_EMPTY: Packed = (b"", None)


class _Big:
    """Wraps big bytes so that pickle hands them over as a buffer."""

    __slots__ = ("value",)

    def __init__(self, value: bytes | bytearray) -> None:
        self.value = value

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        rebuild = _core.to_bytes if type(self.value) is bytes else bytearray
        return rebuild, (pickle.PickleBuffer(self.value),)


def _is_plain(value: object) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is bytes or kind is bytearray:
        return len(value) < _BIG_BYTES  # type: ignore[arg-type]
    if kind is tuple or kind is list:
        return len(value) <= 8 and all(type(item) in _PLAIN for item in value)  # type: ignore
    numpy = sys.modules.get("numpy")
    if numpy is not None and kind is numpy.ndarray:
        return value.dtype.kind in "biufc"  # type: ignore[attr-defined]
    return False


_PLAIN_CONTAINERS = frozenset({list, tuple, dict})
_LOOKED_INTO = _PLAIN_CONTAINERS | {bytes, bytearray}
_DEPTH = 8


def _wrap_big(value: Any) -> Any:
    """The value with big bytes in plain containers replaced, one wrapper for each object.

    The value itself is left alone. Objects that occur several times still do in the copy.
    """
    return _copy_wrapped(value, {}) if _has_big(value, _DEPTH) else value


def _has_big(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind is bytes or kind is bytearray:
        return len(value) >= _BIG_BYTES
    if kind not in _PLAIN_CONTAINERS or not depth:
        return False
    items = value.values() if kind is dict else value
    # One pass in C tells for most containers that there is nothing to see.
    if _LOOKED_INTO.isdisjoint(map(type, items)):
        return False
    return any(type(item) in _LOOKED_INTO and _has_big(item, depth - 1) for item in items)


def _copy_wrapped(value: Any, known: dict[int, Any], depth: int = _DEPTH) -> Any:
    kind = type(value)
    if id(value) in known:
        return known[id(value)]
    if kind is bytes or kind is bytearray:
        if len(value) < _BIG_BYTES:
            return value
        made: Any = _Big(value)
    elif kind not in _PLAIN_CONTAINERS or not depth:
        return value
    elif kind is dict:
        made = known[id(value)] = {}
        made.update((key, _copy_wrapped(item, known, depth - 1)) for key, item in value.items())
    elif kind is list:
        made = known[id(value)] = []
        made.extend(_copy_wrapped(item, known, depth - 1) for item in value)
    else:
        made = tuple(_copy_wrapped(item, known, depth - 1) for item in value)
    known[id(value)] = made
    return made


_pickler: Any = None


def _make_pickler() -> Any:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.sent: set[int] = set()  # addresses of the storages that travel as a whole

        def reducer_override(self, value: Any) -> Any:
            torch = sys.modules.get("torch")
            if torch is not None and hasattr(torch, "UntypedStorage"):
                if isinstance(value, torch.UntypedStorage) and value.device.type == "cpu":
                    self.sent.add(value.data_ptr())
                    return _reduce_storage(value)
                if isinstance(value, torch.storage.TypedStorage):
                    return _typed_storage, (value._untyped_storage, value.dtype)
                if type(value) is torch.Tensor and _wastes(value, self.sent):
                    compact = value.detach().clone().requires_grad_(value.requires_grad)
                    return compact.__reduce_ex__(5)
            if type(value) is types.CodeType:
                # cloudpickle leaves the file out; with it, a traceback on a worker shows where it was.
                kind, args = self.dispatch_table[types.CodeType](value)
                unnamed = "<dynamic-code>"
                return kind, tuple(value.co_filename if arg == unnamed else arg for arg in args)
            if isinstance(value, BaseException) and not isinstance(value, ActorError):
                packed = pack_exception(value)
                if packed is not value:
                    return unpack_exception, (packed,)
            return super().reducer_override(value)

    return Pickler


def _wastes(tensor: Any, sent: set[int]) -> bool:
    """Whether most of a tensor's storage belongs to others: a slice travels without its whole, unless the
    whole travels too."""
    if tensor.device.type != "cpu" or tensor.layout is not sys.modules["torch"].strided:
        return False
    storage = tensor.untyped_storage()
    needed = tensor.numel() * tensor.element_size()
    return bool(tensor.is_leaf and storage.nbytes() > 2 * needed and storage.data_ptr() not in sent)


def _reduce_storage(storage: Any) -> tuple[Any, ...]:
    import ctypes

    size = storage.nbytes()
    if size == 0:
        return _storage, (b"",)
    window = (ctypes.c_ubyte * size).from_address(storage.data_ptr())
    window._storage = storage  # keeps the memory while the buffer is in use
    return _storage, (pickle.PickleBuffer(memoryview(window).cast("B")),)


def _storage(data: Any) -> Any:
    import torch

    if len(data) == 0:
        return torch.UntypedStorage(0)
    view = memoryview(data)
    if view.readonly:
        view = memoryview(bytearray(view))
    return torch.frombuffer(view, dtype=torch.uint8).untyped_storage()


def _typed_storage(untyped: Any, dtype: Any) -> Any:
    import torch

    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def _dump_general(value: Any) -> Packed:
    global _pickler
    import io

    if _pickler is None:
        _pickler = _make_pickler()
    buffers: list[Any] = []
    out = io.BytesIO()
    pickler = _pickler(out, protocol=5, buffer_callback=buffers.append)
    try:
        pickler.dump(_wrap_big(value))
    except Exception as error:
        raise SerializationError(_blame(value, error)) from error
    return out.getvalue(), _raw(buffers)


def _raw(buffers: list[Any]) -> Buffers:
    """The buffers as flat memory; a buffer that is not contiguous is copied."""
    return [buffer.raw() for buffer in buffers] or None


def _blame(value: Any, error: Exception) -> str:
    """Says which part of ``value`` cannot be pickled."""
    path, culprit = _find(value, "", 4)
    where = f" at {path.lstrip('.')}" if path else ""
    return (
        f"cannot send {_short(culprit)}{where} to another process: {type(error).__name__}: {error}. "
        "Send data that pickle can copy, or make the object on the actor itself."
    )


def _short(value: Any) -> str:
    kind = type(value)
    try:
        text = repr(value)
    except Exception:
        text = "…"
    text = text if len(text) <= 80 else text[:77] + "..."
    return f"{text} (of type {kind.__module__}.{kind.__qualname__})"


def _fails(value: Any) -> bool:
    import io

    try:
        _pickler(io.BytesIO(), protocol=5, buffer_callback=lambda _: None).dump(value)
    except Exception:
        return True
    return False


def _find(value: Any, path: str, depth: int) -> tuple[str, Any]:
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        parts = [(f"{path}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [(f"{path}[{number}]", item) for number, item in enumerate(value)]
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        parts = [(f"{path}.{name}", item) for name, item in vars(value).items()]
    if depth:
        for name, item in parts[:100]:
            if _fails(item):
                return _find(item, name, depth - 1)
    return path, value


def dump_args(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Packed:
    """The arguments of a call.

    Raises:
        SerializationError: one of them cannot be pickled; the error names it.
    """
    if not kwargs:
        if not args:
            return _EMPTY
        for value in args:
            if not _is_plain(value):
                break
        else:
            return _dump_plain((args, kwargs))
    elif all(_is_plain(v) for v in args) and all(_is_plain(v) for v in kwargs.values()):
        return _dump_plain((args, kwargs))
    return _dump_general((args, kwargs))


def _dump_plain(value: Any) -> Packed:
    buffers: list[Any] = []
    body = pickle.dumps(value, 5, buffer_callback=buffers.append)
    return body, _raw(buffers) if buffers else None


def dump(value: Any) -> Packed:
    """One value. None is the empty body.

    Raises:
        SerializationError: it cannot be pickled.
    """
    if value is None:
        return _EMPTY
    if _is_plain(value):
        return _dump_plain(value)
    return _dump_general(value)


def load(body: Any, buffers: Buffers) -> Any:
    """The value behind ``dump``. Imports that it causes happen one at a time in a process."""
    if len(body) == 0:
        return None
    with _unpickle_lock:
        return pickle.loads(body, buffers=buffers or ())


def load_args(body: Any, buffers: Buffers) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments behind ``dump_args``."""
    if len(body) == 0:
        return (), {}
    with _unpickle_lock:
        return pickle.loads(body, buffers=buffers or ())  # type: ignore[no-any-return]


class Cell:
    """A value that is rebuilt when it is first looked at."""

    __slots__ = ("_body", "_buffers", "_load")

    def __init__(self, body: Any, buffers: Buffers, load_value: Callable[[Any, Buffers], Any]) -> None:
        self._body, self._buffers, self._load = body, buffers, load_value

    def load(self) -> Any:
        return self._load(self._body, self._buffers)
