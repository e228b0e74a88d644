"""A running worker to ask: started as a child process or found at a URL.

Owns the exchange over HTTP. Refuses to know what the answers should be, and the other doors that a server may have. Any
thread may ask.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import httpx2
import msgspec

from client.child import Child, NotServed
from client.execute import Answer, Event, Request, answer_of, events, unanswered

_TIMEOUT_S = 120.0
"""The longest silence of the connection; a job may wait in the queue."""
_N_SHOWN_OF_A_REFUSAL = 200

_T = TypeVar("_T")


UNANSWERED = (NotServed, httpx2.HTTPError, msgspec.DecodeError)
"""The errors of an exchange: a refusal, the network, bytes that are not an event."""


def connect(url: str, token: str | None = None) -> httpx2.Client:
    """A client of the server at `url`; `token` is sent as its bearer token. Raises: NotServed for what is no URL."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        return httpx2.Client(base_url=url, headers=headers, timeout=_TIMEOUT_S, trust_env=False)
    except httpx2.InvalidURL as error:
        raise NotServed(f"{url} is not a URL: {error}") from None


def decoded(response: httpx2.Response, of: type[_T]) -> _T:
    """The body of an answer. Raises: NotServed for a refusal, msgspec.DecodeError for another body."""
    if response.status_code != httpx2.codes.OK:
        text = response.text[:_N_SHOWN_OF_A_REFUSAL].strip()
        hint = " (give its token with --token or LLORCH_API_TOKEN)" if response.status_code == 401 else ""
        raise NotServed(f"{response.request.url.path} returned {response.status_code}{hint}: {text}")
    return msgspec.json.decode(response.content, type=of)


class BatchInvariant(msgspec.Struct, frozen=True):
    """The part of `/health` that says whether rows have the same bits under load, as far as the file's type allows."""

    kept: bool = True


class Health(msgspec.Struct, frozen=True):
    """The fields of `/health` that the requests and the report depend on."""

    quant_kind: str
    context_length: int
    vram_bytes: int
    """0 on a CPU."""
    determinism: str = "untested"
    """The worker's verdict: numbers depend on other jobs or not. An older worker reports none."""
    determinism_differences: tuple[str, ...] = ()
    batch_invariant: BatchInvariant | None = None

    @property
    def kind(self) -> str:
        """The key that decides whether rows have the same bits under load: `Q4_1_cpu`, `Q8_0_gpu`, and `Q4_1_ggml_cpu`
        where ggml's own kernels compute. Nothing is kept of F16 on any CPU, so that says nothing of it."""
        if self.vram_bytes:
            return f"{self.quant_kind}_gpu"
        is_left_to_ggml = self.batch_invariant is not None and not self.batch_invariant.kept
        return f"{self.quant_kind}_{'ggml_cpu' if is_left_to_ggml and self.quant_kind != 'F16' else 'cpu'}"

    @property
    def verdict(self) -> str:
        """The word on determinism for people: `same`; `differs beside 7 others`."""
        return " ".join((self.determinism, ", ".join(self.determinism_differences))).strip()


class ServedWorker:
    """A worker for requests; use as a context manager. Made by `of` (a child process) or `at` (a running worker)."""

    def __init__(self, child: Child | None, url: str, token: str | None = None) -> None:
        self._child = child
        self.url = url
        self._token = token

    @classmethod
    def of(cls, model: Path, *arguments: str) -> Self:
        """A worker on `model`, on a free port of the loopback; `arguments` are further flags of `serve`."""
        where = ("--model", str(model.absolute()), "--host", "127.0.0.1", "--port", "0")
        return cls(Child(*where, *arguments), "")

    @classmethod
    def at(cls, url: str, token: str | None = None) -> Self:
        """The worker that listens at `url`, as it is; it is not ended."""
        return cls(None, url, token)

    def __enter__(self) -> Self:
        """Raises: NotServed when it does not start, or is not ready."""
        with ExitStack() as closing:
            if self._child:
                self.url = closing.enter_context(self._child).ready().url
            self._client = closing.enter_context(connect(self.url, self._token))
            self.health = self._checked()
            self._closing = closing.pop_all()
        return self

    def _checked(self) -> Health:
        try:
            ready = self._client.get("/readyz")
            if ready.status_code != httpx2.codes.OK:
                raise NotServed(
                    f"the worker at {self.url} is not ready ({ready.status_code}): wait until /readyz says 200"
                )
            return self._read_health()
        except (httpx2.HTTPError, msgspec.DecodeError) as error:
            raise NotServed(f"the worker at {self.url} cannot be reached: {error}") from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def ask(self, request: Request) -> Answer:
        """The whole answer to one job. A refusal or a broken connection is an answer without a terminal event."""
        try:
            with self.stream(request) as stream:
                return answer_of(request.job_id, list(stream))
        except UNANSWERED as error:
            return unanswered(request.job_id, error)

    @contextmanager
    def stream(self, request: Request) -> Iterator[Iterator[Event]]:
        """The events of one job as they come; leaving early closes the connection, which cancels the job.

        Raises: UNANSWERED; NotServed is a refusal.
        """
        body = msgspec.json.encode(request)
        headers = {"content-type": "application/json"}
        with self._client.stream("POST", "/execute", content=body, headers=headers) as response:
            if response.status_code != httpx2.codes.OK:
                raise NotServed(f"job {request.job_id} was refused: {response.status_code} {response.read().decode()}")
            yield events(response.iter_bytes())

    def cancel(self, job_id: str) -> None:
        """Ask for the job's end; its stream then ends with CANCELLED. Raises: httpx2.HTTPError."""
        self._client.post("/cancel", json={"job_id": job_id}).raise_for_status()

    def _read_health(self) -> Health:
        return msgspec.json.decode(self._client.get("/health").content, type=Health)
