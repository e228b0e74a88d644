"""A running worker as its clients see it: started as a child process or found at a URL, asked over HTTP.

Owns the client's side of the wire (docs/protocol.md 4: a request, a stream of events, the answer they make), the
exchange, and the child's life: its start, its address from its log, that it is ready, its end. Refuses to know what the
answers should be, and the other doors that a server may have (servers.py). Any thread may ask.
"""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import httpx2
import msgspec

from worker.config.settings import environment
from worker.errors import WorkerError

N_NEIGHBOURS = 8
"""A child has a slot for one job and this many beside it."""

_START_S = 600.0
"""A large model is read from a disk."""
_END_S = 30.0
"""An idle worker ends at once; its own limit for jobs is 25 s."""
_TIMEOUT_S = 120.0
"""Of a silence on the wire; a job may wait in the queue behind others."""
_N_LAST_WORDS = 20
_SELF_TEST_S = 10.0
"""An idle worker takes up to 5 s for its self-test."""
_ASK_AGAIN_S = 0.25
_N_SHOWN_OF_A_REFUSAL = 200

_T = TypeVar("_T")


class NotServed(WorkerError):
    """There is no worker to ask: one line that says why."""


UNANSWERED = (NotServed, httpx2.HTTPError, msgspec.DecodeError)
"""What an exchange can fail with: a refusal, the network, bytes that are no event."""


def connect(url: str, token: str | None = None) -> httpx2.Client:
    """A client of the server at `url`; `token` is sent as its bearer token. Raises: NotServed for what is no URL."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        return httpx2.Client(base_url=url, headers=headers, timeout=_TIMEOUT_S, trust_env=False)
    except httpx2.InvalidURL as error:
        raise NotServed(f"{url} is no URL: {error}") from None


def decoded(response: httpx2.Response, of: type[_T]) -> _T:
    """The body of an answer. Raises: NotServed for a refusal, msgspec.DecodeError for another body."""
    if response.status_code != httpx2.codes.OK:
        text = response.text[:_N_SHOWN_OF_A_REFUSAL].strip()
        hint = " (--token, or LLORCH_API_TOKEN, is what it asks for)" if response.status_code == 401 else ""
        raise NotServed(f"{response.request.url.path} was answered {response.status_code}{hint}: {text}")
    return msgspec.json.decode(response.content, type=of)


# ── the wire ─────────────────────────────────────────────────────────────────────────────────────


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A body of `POST /execute`. A seed of None leaves it to the worker."""

    job_id: str
    prompt: str
    max_tokens: int
    temperature: float
    logprobs: int
    seed: int | None = None
    top_k: int = 0


class Top(msgspec.Struct, frozen=True):
    id: int
    logprob: float


class Drawn(msgspec.Struct, frozen=True):
    """One sampled token with its row's most probable ones, best first."""

    id: int
    logprob: float
    """Of the token under the model's raw logits, nats."""
    top: tuple[Top, ...]


class Started(msgspec.Struct, frozen=True, tag_field="type", tag="started"):
    seed: int


class Token(msgspec.Struct, frozen=True, tag_field="type", tag="token"):
    t: str
    logprobs: tuple[Drawn, ...] = ()


class Metrics(msgspec.Struct, frozen=True, tag_field="type", tag="metrics"):
    pass


class End(msgspec.Struct, frozen=True, tag_field="type", tag="end"):
    stop_reason: str
    tokens_sampled: int


class Failed(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    code: str
    message: str


Event = Started | Token | Metrics | End | Failed
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)

END = -1
"""Stands in `Answer.choices` for the end token that ended an answer; its id is not on the wire."""


def events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """Server-sent events as they come, whatever way the bytes are cut. Raises: msgspec.ValidationError."""
    rest = b""
    for chunk in chunks:
        *frames, rest = (rest + chunk).split(b"\n\n")
        yield from (_decoder.decode(frame.removeprefix(b"data: ")) for frame in frames if not frame.startswith(b":"))


@dataclass(frozen=True, slots=True)
class Answer:
    """All of one stream."""

    job_id: str
    seed: int | None = None
    """As `started` reports it."""
    drawn: tuple[Drawn, ...] = ()
    """Every sampled token whose text was shown."""
    text: str = ""
    stop_reason: str = ""
    """`""` when the job did not come to its end."""
    n_sampled: int = 0
    error: str = ""
    """Code and message of the error event, or why there was no stream; else `""`."""
    n_terminal: int = 0
    """Terminal events; exactly one is right."""

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(drawn.id for drawn in self.drawn)

    @property
    def choices(self) -> tuple[int, ...]:
        """The tokens, and END where the model ended the answer."""
        return (*self.tokens, END) if self.stop_reason == "EOS" else self.tokens


def answer_of(job_id: str, told: Sequence[Event]) -> Answer:
    """The answer that a stream's events make, also of a stream that broke off."""
    started = next((event for event in told if isinstance(event, Started)), None)
    ended = next((event for event in told if isinstance(event, End)), None)
    failed = next((event for event in told if isinstance(event, Failed)), None)
    tokens = [event for event in told if isinstance(event, Token)]
    return Answer(
        job_id=job_id,
        seed=started.seed if started else None,
        drawn=tuple(drawn for token in tokens for drawn in token.logprobs),
        text="".join(token.t for token in tokens),
        stop_reason=ended.stop_reason if ended else "",
        n_sampled=ended.tokens_sampled if ended else 0,
        error=f"{failed.code}: {failed.message}" if failed else "",
        n_terminal=sum(isinstance(event, End | Failed) for event in told),
    )


def unanswered(job_id: str, error: Exception) -> Answer:
    """For a job that was refused or whose worker was gone."""
    return Answer(job_id, error=str(error) or type(error).__name__)


class Health(msgspec.Struct, frozen=True):
    """What `/health` tells that the questions and the report depend on."""

    quant_kind: str
    context_length: int
    vram_bytes: int
    """0 on a CPU."""
    determinism: str = "untested"
    """The verdict of the worker's own self-test, and where it found differences; an older worker has none."""
    determinism_differences: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """`Q4_1_cpu`, `Q8_0_gpu`: what decides whether rows are the same bits in any company."""
        return f"{self.quant_kind}_{'gpu' if self.vram_bytes else 'cpu'}"

    @property
    def self_test(self) -> str:
        """For people: `same`; `differs beside 7 others`."""
        return " ".join((self.determinism, ", ".join(self.determinism_differences))).strip()


# ── the exchange ─────────────────────────────────────────────────────────────────────────────────


class ServedWorker:
    """A worker to ask; use as a context manager. Made by `of` (a child process) or `at` (somebody else's worker)."""

    def __init__(self, child: "_Child | None", url: str, token: str | None = None) -> None:
        self._child = child
        self.url = url
        self._token = token

    @classmethod
    def of(cls, model: Path, *arguments: str) -> Self:
        """A worker on `model`, on a free port of the loopback; `arguments` are further flags of `serve`.

        It has a slot for one job and its eight neighbours. Of the environment it gets all but LLORCH_*.
        """
        return cls(_Child(model, arguments), "")

    @classmethod
    def at(cls, url: str, token: str | None = None) -> Self:
        """The worker that listens at `url`, as it is; it is not ended."""
        return cls(None, url, token)

    def __enter__(self) -> Self:
        """Raises: NotServed when it does not start, or is not ready."""
        self.url = self._child.start() if self._child else self.url
        self._client = connect(self.url, self._token)
        try:
            ready = self._client.get("/readyz")
            if ready.status_code != httpx2.codes.OK:
                raise NotServed(
                    f"the worker at {self.url} is not ready ({ready.status_code}): wait until /readyz says 200"
                )
            self.health = self._read_health()
        except (httpx2.HTTPError, msgspec.DecodeError) as error:
            self._close()
            raise NotServed(f"{self.url} is no worker that can be asked: {error}") from None
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

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

    def self_test(self) -> str:
        """The self-test's verdict, waited for: it is made when the worker is idle. `untested` when it does not come."""
        give_up_s = time.monotonic() + _SELF_TEST_S
        health = self.health
        while health.determinism == "untested" and time.monotonic() < give_up_s:
            time.sleep(_ASK_AGAIN_S)
            try:
                health = self._read_health()
            except (httpx2.HTTPError, msgspec.DecodeError):
                break
        return health.self_test

    def _read_health(self) -> Health:
        return msgspec.json.decode(self._client.get("/health").content, type=Health)

    def _close(self) -> None:
        self._client.close()
        if self._child:
            self._child.end()


class _LogLine(msgspec.Struct, frozen=True):
    event: str = ""
    url: str = ""
    message: str = ""


class _Child:
    """`python -m worker` with JSON logs in a file of its own."""

    def __init__(self, model: Path, arguments: tuple[str, ...]) -> None:
        self._argv = [
            *(sys.executable, "-m", "worker", "--model", str(model.absolute()), "--host", "127.0.0.1", "--port", "0"),
            *("--log-format", "json", "--parallel", str(N_NEIGHBOURS + 1), *arguments),
        ]

    def start(self) -> str:
        """The URL at which it takes jobs. Raises: NotServed."""
        kept = {name: value for name, value in environment().items() if not name.startswith("LLORCH_")}
        self._log = tempfile.NamedTemporaryFile(prefix="llorch-parity-", suffix=".log")  # noqa: SIM115 - `end` closes it
        self._process = subprocess.Popen(
            self._argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._log, env=kept
        )
        try:
            return self._awaited_url()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Idempotent; it is gone afterwards."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait(_END_S)
        self._log.close()

    def _awaited_url(self) -> str:
        """Where it listens, once it is ready."""
        give_up_s = time.monotonic() + _START_S
        while True:
            # Asked before its log is read: what it wrote at its end is then in there.
            has_ended = self._process.poll() is not None
            said = {line.event: line for line in self._lines()}
            if "listening" in said and "ready" in said:
                return said["listening"].url
            if has_ended:
                words = [line.message for line in self._lines() if line.message][-_N_LAST_WORDS:]
                raise NotServed(f"the worker ended before it was ready: {' | '.join(words) or 'no word'}")
            if time.monotonic() > give_up_s:
                raise NotServed(f"the worker was not ready after {_START_S:g} s")
            time.sleep(_ASK_AGAIN_S)

    def _lines(self) -> Iterator[_LogLine]:
        for raw in Path(self._log.name).read_bytes().splitlines():
            try:
                yield msgspec.json.decode(raw, type=_LogLine)
            except msgspec.DecodeError:
                yield _LogLine(message=raw.decode("utf-8", "replace").strip())
