"""The ready callback, which announces to the pool manager that this worker serves: the POST, the rules of success, and
the retries (docs/protocol.md#start-up-and-callback). serve.py has the body, and decides what a failure means.
"""

import asyncio
import os
import re
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from http import HTTPStatus
from typing import Any, Final

import httpx2
import stamina
import uvloop

from worker.errors import CallbackFailed

BUDGET_S: Final = 60.0
"""The seconds in which attempts are made, from the first on; docs/protocol.md#start-up-and-callback."""

ATTEMPT_TIMEOUT_S: Final = 5.0
"""The seconds that one whole attempt may take, not each read of it; docs/protocol.md#start-up-and-callback."""

_FIRST_WAIT_S, _LONGEST_WAIT_S, _JITTER_S = 0.2, 5.0, 0.5
"""The waits double: a receiver that restarts is found quickly, and one that stays away is called about 15 times."""

_TEST_MODE_MARK = "localhost:9999"
_NOT_FOR_LOGS = re.compile(r"(?<=//)[^/?#]*@|[?#].*")
"""User, password, query and fragment of a URL, which may hold credentials."""


class _NoSuccessYet(CallbackFailed):
    """A failure that may pass: no connection, no answer in time, or a 5xx."""


def is_test_mode(url: str) -> bool:
    """True for a URL that means "log it, make no call" (docs/protocol.md#start-up-and-callback)."""
    return _TEST_MODE_MARK in url


async def announce(
    url: str,
    body: bytes,
    *,
    token: str | None = None,
    budget_s: float = BUDGET_S,
    attempt_timeout_s: float = ATTEMPT_TIMEOUT_S,
) -> None:
    """Post `body` (JSON) to `url`, verbatim, until it is answered with a 2xx. May be cancelled at any time.

    Proxy variables and redirects are ignored. Raises: CallbackFailed at once for a 3xx, a 4xx or an unusable URL,
    and with the last failure when `budget_s` is used up.
    """
    # Reading the certificate store takes about 20 ms: not on the loop.
    tls = await asyncio.to_thread(httpx2.create_ssl_context, trust_env=False)
    failure = CallbackFailed(f"no answer from {shown_url(url)} within {budget_s:g} s")
    try:
        async with (
            asyncio.timeout(budget_s),
            httpx2.AsyncClient(verify=tls, trust_env=False, timeout=None, auth=_bearer(token)) as client,
        ):
            async for attempt in stamina.retry_context(
                on=_NoSuccessYet,
                attempts=None,
                timeout=None,  # the budget also bounds a wait and an attempt under way
                wait_initial=_FIRST_WAIT_S,
                wait_max=_LONGEST_WAIT_S,
                wait_jitter=_JITTER_S,
            ):
                with attempt:
                    try:
                        await _post(client, url, body, attempt_timeout_s)
                    except _NoSuccessYet as error:
                        failure = error
                        raise
    except TimeoutError:
        raise failure from None


async def _post(client: httpx2.AsyncClient, url: str, body: bytes, timeout_s: float) -> None:
    """Make one attempt. The answer's body is never read: only the status counts."""
    headers = {"Content-Type": "application/json"}
    where = shown_url(url)
    try:
        async with asyncio.timeout(timeout_s), client.stream("POST", url, content=body, headers=headers) as response:
            status = response.status_code
    except TimeoutError:
        raise _NoSuccessYet(f"no answer from {where} within {timeout_s:g} s") from None
    except httpx2.InvalidURL as error:
        raise CallbackFailed(f"{where!r} is not a URL: {error}") from error
    except httpx2.LocalProtocolError:
        # The library's text quotes the header, and with it the token.
        raise CallbackFailed("the API token holds characters that no HTTP header can carry") from None
    except httpx2.TransportError as error:
        raise _NoSuccessYet(f"no answer from {where}: {_root_cause(error)}") from error
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return
    answer = f"{status} {httpx2.codes.get_reason_phrase(status)}".strip() + f" from {where}"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise _NoSuccessYet(answer)
    if status < HTTPStatus.BAD_REQUEST:
        raise CallbackFailed(f"{answer}: redirects are not followed, give the final URL")
    raise CallbackFailed(answer)


def _bearer(token: str | None) -> Callable[[httpx2.Request], httpx2.Request] | None:
    """Return the token as httpx2's auth hook, which comes before a user and password in the URL."""
    if token is None:
        return None

    def add(request: httpx2.Request) -> httpx2.Request:
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    return add


def _root_cause(error: Exception) -> str:
    """Return the system's message. The libraries above it say no more than "all connection attempts failed"."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, BaseExceptionGroup):  # one per address of the host
            link = link.exceptions[0]
        if isinstance(link, OSError) and link.errno is not None:
            return os.strerror(link.errno) if isinstance(link, ConnectionError) else str(link)
        link = link.__cause__ or link.__context__
    return str(error) or type(error).__name__


def shown_url(url: str) -> str:
    return _NOT_FOR_LOGS.sub("", url)


class Loop(uvloop.Loop):
    """uvloop's loop, which looks names up in threads that the process does not wait for.

    A resolver may take minutes, and no lookup can be stopped. uvloop and libuv join their threads before the process
    ends, so that a worker would be killed at the end of its grace instead of leaving.
    """

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
