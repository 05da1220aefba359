"""A network that can be cut, slowed down, recorded and tampered with."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class Proxy:
    """Passes TCP connections on to a host, at an address of its own."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.connections: list[tuple[socket.socket, socket.socket]] = []
        self.count = 0
        self.recorded: list[bytearray] = []
        self.passed_bytes = 0
        self.delay_s = 0.0
        self._whole = threading.Event()
        self._whole.set()
        self._flip = threading.Event()
        self._cut_after = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            if not self._whole.is_set():
                near.close()
                continue
            try:
                far = socket.create_connection(self.target)
            except OSError:
                near.close()
                continue
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            record = bytearray()
            with self._lock:
                self.connections.append((near, far))
                self.recorded.append(record)
                self.count += 1
            threading.Thread(target=self._pump, args=(near, far, record), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, None), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, record: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self.delay_s:
                    time.sleep(self.delay_s)
                self.passed_bytes += len(data)
                if record is not None:
                    if len(record) < 1 << 20:
                        record += data
                    if self._flip.is_set():
                        self._flip.clear()
                        changed = bytearray(data)
                        changed[-1] ^= 1
                        data = bytes(changed)
                if self._cut_after and self.passed_bytes >= self._cut_after:
                    self._cut_after = 0
                    sink.sendall(data[: len(data) // 2])
                    self.drop()
                    return
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def drop(self) -> None:
        """Breaks all connections; new ones are passed on."""
        with self._lock:
            connections, self.connections = self.connections, []
        for pair in connections:
            for one in pair:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    def cut(self) -> None:
        """Breaks all connections, and those to come."""
        self._whole.clear()
        self.drop()

    def heal(self) -> None:
        """Passes connections on again."""
        self._whole.set()

    def cut_after(self, bytes_more: int) -> None:
        """Breaks all connections in the middle of a message, when this many bytes have passed."""
        self._cut_after = self.passed_bytes + bytes_more

    def flip(self) -> None:
        """Changes a byte of the next data on its way to the host."""
        self._flip.set()

    def close(self) -> None:
        self.listener.close()
        self.drop()
