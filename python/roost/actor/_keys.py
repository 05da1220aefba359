"""The cluster's key: what makes a host one of ours.

It is a file that only its user can read, with the private key and the certificate of an authority that exists
for this cluster alone. Who has it may run programs on all hosts of the cluster; who has not gets no answer.
"""

from __future__ import annotations

import contextlib
import os
import stat

from roost import _core
from roost.actor._addresses import is_loopback

TRUST_ALL = "trust_all_connections"
"""What programs written for Monarch give as ``ca``: here it stands for the usual key."""
HINT = (
    "make one with `roost keygen`, copy it to each host, and name it in ROOST_KEY (or put it at "
    "~/.config/roost/cluster.key)"
)


def default_path() -> str:
    """Where the key of this user is, unless ``ROOST_KEY`` names another file."""
    return os.environ.get("ROOST_KEY") or os.path.expanduser("~/.config/roost/cluster.key")


def keygen(path: str | None = None) -> str:
    """Writes a new cluster key (mode 0600), and returns its path.

    Args:
        path: where to; ``ROOST_KEY`` or ``~/.config/roost/cluster.key`` by default.

    Raises:
        FileExistsError: there is a file already.
    """
    path = default_path() if path is None else path
    if not _write(path):
        raise FileExistsError(f"{path} is there already; a cluster's key is not replaced by accident")
    return path


def _write(path: str) -> bool:
    """Writes a key under a name that nobody has, or not at all; nobody sees half a key."""
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, mode=0o700, exist_ok=True)
    draft = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w", encoding="ascii") as file:
            file.write(_core.generate_key())
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
            return True
        return False
    finally:
        os.unlink(draft)


def read_key(path: str) -> str:
    """The text of a key file.

    Raises:
        PermissionError: others may read it, or this user may not.
        FileNotFoundError: there is no such file.
    """
    with open(path, encoding="utf-8") as file:
        found = os.fstat(file.fileno())
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(f"the cluster key {path} can be read by others; run `chmod 600 {path}`")
        return file.read()


def find_key(addresses: list[str], ca: object = None, private_key: object = None) -> str | None:
    """The key to use with these addresses, as text; None where none is needed.

    Args:
        addresses: where this host listens, or what it dials.
        ca: path or bytes of a cluster key, or of the authority's certificate alone; `TRUST_ALL` and None
            stand for the usual key.
        private_key: path or bytes of the authority's private key, when ``ca`` has the certificate alone.

    Raises:
        PermissionError: no key is configured, and an address is not this machine's own.
    """
    if ca is not None and ca != TRUST_ALL:
        return _given(ca) + ("" if private_key is None else _given(private_key))
    if private_key is not None:
        return _given(private_key)
    if all(address.startswith("unix://") for address in addresses):
        return None
    path = default_path()
    if os.path.exists(path) or os.environ.get("ROOST_KEY"):
        return read_key(path)
    open_to_others = [address for address in addresses if not is_loopback(address)]
    if open_to_others:
        raise PermissionError(
            f"{open_to_others[0]} can be reached by others, and no cluster key is configured: {HINT}"
        )
    _write(path)
    return read_key(path)


def _given(value: object) -> str:
    """Text of a key that was given as a path or as bytes."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value)
        if isinstance(text, str) and "-----BEGIN" in text:
            return text
        with open(text, encoding="utf-8") as file:
            return file.read()
    raise TypeError(f"a key is a path, or its text as bytes, not {type(value).__name__}")
