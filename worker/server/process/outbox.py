"""The outbox of the engine process: its messages to the front, in order, from any thread, without ever waiting.

Owns the socket's writing end, and the end of a process that has no listener or cannot be saved. Does not know
what the frames mean.
"""

import os
import socket
import sys
import threading
import traceback
from collections import deque

from worker.wire.encoding import encode_frame
from worker.wire.messages import Outbound

MAX_OUTSTANDING_BYTES = 16 * 1024 * 1024
"""The number of unread bytes at which the engine takes the front for dead and ends."""


class Outbox:
    """Frames to the front, in order, from two threads, without ever waiting for it.

    A frame goes straight to the socket while that takes it; what it does not take waits for the writer thread.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._waiting: deque[bytes] = deque()
        self._n_waiting_bytes = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._write, name="writer", daemon=True).start()

    def send(self, message: Outbound) -> None:
        frame = encode_frame(message)
        with self._changed:
            if not self._waiting:
                frame = frame[self._send_now(frame) :]
            if not frame:
                return
            self._waiting.append(frame)
            self._n_waiting_bytes += len(frame)
            if self._n_waiting_bytes > MAX_OUTSTANDING_BYTES:
                leave(f"the front has left {self._n_waiting_bytes} bytes unread")
            self._changed.notify()

    def _send_now(self, frame: bytes) -> int:
        try:
            return self._sock.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            return leave("the front is gone")

    def _write(self) -> None:
        """Send what the socket did not take at once. The frame being sent stays first, so that none overtakes it."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                frame = self._waiting[0]
            try:
                self._sock.sendall(frame)
            except OSError:
                leave("the front is gone")
            with self._changed:
                self._waiting.popleft()
                self._n_waiting_bytes -= len(frame)


def leave(reason: str) -> int:
    """End the process now, from any thread: there is no front to answer. An empty reason is the expected one."""
    try:
        if reason:
            sys.stderr.write(f"engine: {reason}; leaving\n")
            sys.stderr.flush()
    finally:  # a killed front has closed the pipe's other end too
        os._exit(0)


def die() -> None:
    """End the process after an exception nothing can recover from; the front reads the last line."""
    try:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)
