"""Settings: named, typed, with one place for each to come from.

    configure(stop_grace_period="30s")
    with configured(enable_log_forwarding=False):
        ...

A setting's value is the first of: what `configure` set in this program, the environment variable
``ROOST_<NAME>``, the file that ``ROOST_CONFIG`` names (TOML; ``~/.config/roost/config.toml`` when unset),
the default. New processes start with what the program that spawns them has set.

Names that programs written for Monarch set are known. Those that stand for something that roost has no
need of are checked and kept, and have no effect; `describe` says which.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import timedelta

    Value = bool | int | float | str | timedelta | None

__all__ = [
    "clear_runtime_config",
    "configure",
    "configured",
    "describe",
    "get_global_config",
    "get_runtime_config",
]


class Setting(NamedTuple):
    """One setting.

    Attributes:
        kind: ``duration``, ``size`` (bytes), ``bool``, ``int``, ``float`` or ``text``.
        default: its value where nothing sets it.
        meaning: what it does; empty when it has no effect.
        optional: None is a value.
    """

    kind: str
    default: Any
    meaning: str = ""
    optional: bool = False


_SETTINGS: dict[str, Setting] = {
    "cleanup_timeout": Setting("duration", 3.0, "how long an actor's __cleanup__ may take"),
    "enable_log_forwarding": Setting("bool", True, "show what workers print in the controller"),
    "frozen_timeout": Setting(
        "duration", 5.0, "how long a process may be stopped (SIGSTOP) before it counts as dead and is killed"
    ),
    "host_connect_timeout": Setting(
        "duration", 10.0, "how long to try to connect with a host before that is an error"
    ),
    "host_heartbeat_interval": Setting("duration", 1.5, "how often hosts tell each other that they live"),
    "host_timeout": Setting(
        "duration", 5.0, "how long a host may be silent, or its connection broken, before it counts as dead"
    ),
    "log_window": Setting(
        "duration", 0.2, "how long equal lines of several ranks are held, to show them once"
    ),
    "mesh_proc_spawn_max_idle": Setting(
        "duration", 30.0, "how long a process may take to report after its start before it is killed"
    ),
    "preload": Setting(
        "text",
        "numpy,torch,torch._dynamo,pandas,scipy,transformers",
        "modules, with commas between, that a host imports once for all its processes when the program has",
    ),
    "prefix_with_rank": Setting("bool", True, "lines of workers begin with their actor and rank"),
    "shared_memory_limit": Setting(
        "size", None, "most bytes of shared memory for payloads in a process; a quarter of the memory", True
    ),
    "stop_grace_period": Setting(
        "duration", 10.0, "how long actors and processes may take to end before they are killed"
    ),
    "tail_log_lines": Setting("int", 20, "how many last lines of a dead process's stderr errors show"),
    "unhandled_fault_grace": Setting(
        "duration", 2.0, "how long a program may take to see a failure through one of its own calls"
    ),
}

# Known to programs that come from elsewhere, and without a counterpart here. The numbers are the peer's.
_WITHOUT_EFFECT: dict[str, Setting] = {
    **{
        name: Setting("duration", seconds)
        for name, seconds in {
            "actor_spawn_max_idle": 30.0,
            "channel_net_rx_buffer_full_check_interval": 5.0,
            "channel_reconnect_timeout": 60.0,
            "channel_tcp_keepalive_idle": 60.0,
            "forwarder_flush_timeout": 5.0,
            "get_actor_state_max_idle": 30.0,
            "get_proc_state_max_idle": 60.0,
            "host_spawn_ready_timeout": 30.0,
            "mesh_attach_config_timeout": 60.0,
            "mesh_orphan_timeout": 60.0,
            "mesh_terminate_timeout": 10.0,
            "message_ack_time_interval": 0.5,
            "message_delivery_timeout": 30.0,
            "otel_metric_export_interval": 1.0,
            "pending_actor_delivery_timeout": 30.0,
            "proc_stop_max_idle": 30.0,
            "process_exit_timeout": 10.0,
            "process_memory_metric_interval": 300.0,
            "rdma_qp_init_timeout": 30.0,
            "server_heartbeat_interval": 1.0,
            "split_max_buffer_age": 0.05,
            "stop_actor_timeout": 10.0,
            "supervision_watchdog_timeout": 120.0,
        }.items()
    },
    **{
        name: Setting("int", number)
        for name, number in {
            "codec_max_frame_length": 10 << 30,
            "max_cast_dimension_size": 16,
            "max_cast_fanout": 16,
            "mesh_terminate_concurrency": 16,
            "message_ack_every_n_messages": 1000,
            "message_ttl_default": 64,
            "rdma_max_chunk_size_mb": 64,
            "rdma_min_stripe_size_kb": 512,
            "rdma_qps_per_cq": 64,
            "rdma_qps_per_peer": 4,
            "rdma_runtime_worker_threads": 4,
            "rdma_tcp_fallback_parallelism": 1,
            "read_log_buffer": 100,
            "small_write_threshold": 256,
            "split_max_buffer_size": 5,
            "terminated_snapshot_retention": 100,
        }.items()
    },
    **{
        name: Setting("bool", flag)
        for name, flag in {
            "enable_dest_actor_reordering_buffer": True,
            "enable_file_capture": False,
            "enable_otel_metrics": True,
            "enable_otel_tracing": True,
            "enable_recorder_tracing": True,
            "enable_sqlite_tracing": False,
            "force_file_log": False,
            "mesh_bootstrap_enable_pdeathsig": True,
            "prefix_python_logs_with_actor": True,
            "rdma_allow_tcp_fallback": True,
            "rdma_cq_poller_per_device": True,
            "rdma_disable_ibverbs": False,
            "rdma_host_odp": False,
            "use_direct_spawn": False,
        }.items()
    },
    **{
        name: Setting("text", text)
        for name, text in {
            "channel_tcp_congestion": "",
            "default_encoding": "Multipart",
            "default_transport": "Unix",
            "mesh_admin_addr": "[::]:1729",
            "proc_launcher_kind": "",
            "pyspy_bin": "",
            "rdma_ibverbs_target": "",
            "rdma_peer_device_affinity": "",
        }.items()
    },
    "message_latency_sampling_rate": Setting("float", 0.01),
    "rdma_max_nics_per_buffer": Setting("int", None, optional=True),
    "tokio_worker_threads": Setting("int", None, optional=True),
}

_known = {**_SETTINGS, **_WITHOUT_EFFECT}
_runtime: dict[str, Any] = {}
_file: dict[str, Any] | None = None
_hosts: dict[str, list[str]] = {}
_environment: dict[str, tuple[str, Any]] = {}
_lock = threading.RLock()


def configure(**settings: Value) -> None:
    """Sets settings of this program, and of the processes that it spawns from now on.

    Args:
        settings: durations are seconds, text such as ``"5s"``, ``"200ms"`` or ``"1m 30s"``, or a
            ``timedelta``; sizes are bytes or text such as ``"4GiB"``.

    Raises:
        ValueError: there is no such setting; the message suggests the nearest.
        TypeError: a value is not of the setting's kind.
    """
    read = {name: _read(name, value) for name, value in settings.items()}
    with _lock:
        _runtime.update(read)


@contextlib.contextmanager
def configured(**settings: Value) -> Iterator[dict[str, Any]]:
    """Sets settings for the time of a ``with`` block, for the whole process; gives all that apply in it.

    Raises:
        ValueError: there is no such setting.
        TypeError: a value is not of the setting's kind.
    """
    with _lock:
        before = dict(_runtime)
    configure(**settings)
    try:
        yield get_global_config()
    finally:
        with _lock:
            _runtime.clear()
            _runtime.update(before)


def get_global_config() -> dict[str, Any]:
    """All settings and the values that apply; durations as text such as ``"1m 30s"``."""
    return {name: _shown(name, get(name)) for name in sorted(_known)}


def get_runtime_config() -> dict[str, Any]:
    """The settings that this program has set with `configure`."""
    with _lock:
        return {name: _shown(name, value) for name, value in sorted(_runtime.items())}


def clear_runtime_config() -> None:
    """Undoes every `configure` of this program."""
    with _lock:
        _runtime.clear()


def describe(name: str) -> str:
    """What a setting does, of which kind it is, and its default.

    Raises:
        ValueError: there is no such setting.
    """
    setting = _setting(name)
    default = _shown(name, setting.default)
    meaning = setting.meaning or "accepted for programs that set it; has no effect"
    return f"{name} ({setting.kind}, default {default}): {meaning}"


def get(name: str) -> Any:
    """The value that applies; durations in seconds, sizes in bytes.

    Raises:
        ValueError: there is no such setting.
    """
    setting = _setting(name)
    if name in _runtime:
        return _runtime[name]
    text = os.environ.get(f"ROOST_{name.upper()}")
    if text is not None:
        known = _environment.get(name)
        if known is None or known[0] != text:
            known = _environment[name] = (text, _read(name, text, f"ROOST_{name.upper()}: "))
        return known[1]
    stored = _from_file()
    return stored.get(name, setting.default)


def check() -> None:
    """Reads every setting, so that a wrong one is known when a program starts and not in some thread later.

    Raises:
        TypeError: a setting in the environment or the file is not what it should be; the text says which.
        ValueError: the file is not TOML, or has a setting that there is not.
    """
    for name in _known:
        get(name)


def hosts(name: str) -> list[str]:
    """Addresses of the hosts that the file lists under a name; none when it does not have the name."""
    _from_file()
    return list(_hosts.get(name, ()))


def snapshot() -> dict[str, dict[str, Any]]:
    """What new processes need to have the same settings; their environment they have already."""
    with _lock:
        return {"runtime": dict(_runtime), "file": dict(_from_file())}


def inherit(layers: Mapping[str, Mapping[str, Any]]) -> None:
    """Takes over the `snapshot` of the process that has spawned this one."""
    global _file
    with _lock:
        _runtime.clear()
        _runtime.update(layers["runtime"])
        _file = dict(layers["file"])


def _setting(name: str) -> Setting:
    setting = _known.get(name)
    if setting is None:
        from difflib import get_close_matches

        near = get_close_matches(name, _known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"there is no setting {name!r}{hint} (those that do something: {', '.join(_SETTINGS)})"
        )
    return setting


def _from_file() -> dict[str, Any]:
    global _file
    if _file is None:
        named = os.environ.get("ROOST_CONFIG")
        path = named or os.path.expanduser("~/.config/roost/config.toml")
        stored: dict[str, Any] = {}
        if named or os.path.exists(path):
            import tomllib

            with open(path, "rb") as file:
                try:
                    stored = tomllib.load(file)
                except tomllib.TOMLDecodeError as error:
                    raise ValueError(f"{path} is not TOML: {error}") from None
        _hosts.clear()
        _hosts.update(stored.pop("hosts", {}))
        _file = {name: _read(name, value, f"{path}: ") for name, value in stored.items()}
    return _file


def _read(name: str, value: Any, where: str = "") -> Any:
    setting = _setting(name)
    if value is None or (where and setting.optional and value == ""):
        if setting.optional:
            return None
        raise TypeError(f"{where}{name} is a {setting.kind}, not None")
    try:
        return _READERS[setting.kind](value, bool(where))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{where}{name} is a {setting.kind}, not {value!r}: {error}") from None


def _read_bool(value: Any, is_text: bool) -> bool:
    if isinstance(value, bool):
        return value
    if is_text and isinstance(value, str):
        word = value.strip().lower()
        if word in ("1", "true", "yes", "on"):
            return True
        if word in ("0", "false", "no", "off"):
            return False
    raise TypeError("give true or false")


def _read_int(value: Any, is_text: bool) -> int:
    if is_text and isinstance(value, str):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("give a whole number")
    return value


def _read_float(value: Any, is_text: bool) -> float:
    if is_text and isinstance(value, str):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError("give a number")
    return float(value)


def _read_text(value: Any, is_text: bool) -> str:
    # Enumerations of ours stand for their text.
    text = getattr(value, "value", value)
    if not isinstance(text, str):
        raise TypeError("give text")
    return text


_UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_UNITS_S |= {"second": 1.0, "seconds": 1.0, "minute": 60.0, "minutes": 60.0, "hour": 3600.0, "hours": 3600.0}
_UNITS_S |= {"d": 86400.0, "day": 86400.0, "days": 86400.0}


def _read_duration(value: Any, is_text: bool) -> float:
    total = getattr(value, "total_seconds", None)
    if total is not None:
        seconds = float(total())
    elif isinstance(value, str):
        seconds = _parse(value, _UNITS_S)
    else:
        seconds = _read_float(value, False)
    if not 0 <= seconds < 1e12:
        raise ValueError("give 0 or more seconds")
    return seconds


_UNITS_BYTES = {"b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def _read_size(value: Any, is_text: bool) -> int:
    size = int(_parse(value.lower(), _UNITS_BYTES)) if isinstance(value, str) else _read_int(value, False)
    if size < 0:
        raise ValueError("give 0 or more bytes")
    return size


def _parse(text: str, units: Mapping[str, float]) -> float:
    import re

    parts = re.findall(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    if not parts or "".join(number + unit for number, unit in parts) != re.sub(r"\s", "", text):
        raise ValueError(f"give a number and a unit of {', '.join(units)}")
    total = 0.0
    for number, unit in parts:
        if unit not in units and (unit or len(parts) > 1):
            raise ValueError(f"{unit!r} is none of the units {', '.join(units)}")
        total += float(number) * units.get(unit, 1.0)
    return total


_READERS: dict[str, Callable[[Any, bool], Any]] = {
    "bool": _read_bool,
    "duration": _read_duration,
    "float": _read_float,
    "int": _read_int,
    "size": _read_size,
    "text": _read_text,
}


def _shown(name: str, value: Any) -> Any:
    return show_duration(value) if _known[name].kind == "duration" and value is not None else value


def show_duration(seconds: float) -> str:
    """Seconds as text that `configure` reads.

    Example:
        >>> show_duration(90.5)
        '1m 30s 500ms'
    """
    left = round(seconds * 1e9)
    words = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size * 10**9)
        if count:
            words.append(f"{count}{unit}")
    for unit, size in (("ms", 10**6), ("us", 10**3), ("ns", 1)):
        count, left = divmod(left, size)
        if count:
            words.append(f"{count}{unit}")
    return " ".join(words) or "0s"
