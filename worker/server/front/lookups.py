"""The front's event loop, which looks names up in threads that the process does not wait for.

A resolver may take minutes, and no lookup can be stopped. uvloop and libuv join their threads before the process ends,
so that a worker would be killed at the end of its grace instead of leaving.
"""

import asyncio
import socket
import threading
from concurrent.futures import Future
from typing import Any

import uvloop


class Loop(uvloop.Loop):
    """uvloop's loop with lookups of its own."""

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        """Look a name up, as `socket.getaddrinfo`. A caller that is cancelled leaves the thread to itself.

        Raises: socket.gaierror, also where no thread can be started; OSError and UnicodeError as there.
        """
        found: Future[Any] = Future()
        found.set_running_or_notify_cancel()

        def look_up() -> None:
            try:
                found.set_result(socket.getaddrinfo(host, port, family, type, proto, flags))
            except (OSError, UnicodeError) as error:
                found.set_exception(error)

        try:
            threading.Thread(target=look_up, name="lookup", daemon=True).start()
        except RuntimeError as error:
            raise socket.gaierror(socket.EAI_MEMORY, str(error)) from error
        return await asyncio.wrap_future(found, loop=self)
