"""A running server judged from outside: its reports of tokens, conversations, rows and greedy continuations.

Two servers are known by what they answer: a llorch-worker and a llama-server, whose routes for tokens are the same.
Owns the fields of these routes. Refuses to know what the answers should be, and `/execute` (client/).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Final, TypeVar

import httpx2
import msgspec

from client.child import NotServed
from client.worker import ServedWorker, connect, decoded
from parity.compare import ReportedRow

N_TOP: Final = 20
"""The number of a row's tokens: as many as a worker reports."""
_FORCED: Final = 1e4
"""Added to a logit, it makes its token the most probable one."""

Message = Mapping[str, str]
_Logprob = Annotated[float, msgspec.Meta(le=1e-3)]
"""The log of a probability, which rounding may lift above 1."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a server reports about itself and its model."""

    software: str
    model: str
    quant_kind: str
    """`other` where it does not say."""
    size_bytes: int
    n_vocab: int


class _Meta(msgspec.Struct, frozen=True):
    size: int = 0
    n_vocab: int = 0
    quant_kind: str = "other"


class _Card(msgspec.Struct, frozen=True):
    id: str
    meta: _Meta


class _Cards(msgspec.Struct, frozen=True):
    data: tuple[_Card, ...]


class _Tokens(msgspec.Struct, frozen=True):
    tokens: list[int]


class _Content(msgspec.Struct, frozen=True):
    content: str


class _Rendered(msgspec.Struct, frozen=True):
    prompt: str


class Server(ABC):
    """One server; made by `opened`. Every method raises UNANSWERED of client/worker.py."""

    facts: Facts
    render_path: str

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client

    def tokenize(self, text: str) -> list[int]:
        """Special tokens in it are parsed, BOS is not put before it."""
        body = {"content": text, "add_special": False, "parse_special": True}
        return self._post("/tokenize", body, _Tokens).tokens

    def text(self, tokens: Sequence[int]) -> str:
        """Special tokens by their names; bytes that are no character are U+FFFD."""
        return self._post("/detokenize", {"tokens": tokens}, _Content).content

    def render(self, conversation: Sequence[Message]) -> str:
        """The prompt that the conversation becomes."""
        return self._post(self.render_path, {"messages": conversation}, _Rendered).prompt

    @abstractmethod
    def rows(self, tokens: Sequence[int]) -> list[ReportedRow]:
        """The log-probabilities that it reports for each token's row: N_TOP tokens and the next token."""

    def greedy(self, prompt: Sequence[int], n_tokens: int) -> list[int]:
        """The most probable continuation; after an end token the server is asked how it would go on."""
        found: list[int] = []
        while len(found) < n_tokens:
            more = self._continued([*prompt, *found], n_tokens - len(found))
            if not more:
                raise NotServed(f"the server generated no token after a prompt of {len(prompt) + len(found)} tokens")
            found += more
        return found[:n_tokens]

    @abstractmethod
    def _continued(self, prompt: Sequence[int], n_tokens: int) -> list[int]:
        """Generate greedily, at most up to an end token, which is included."""

    def _post(self, path: str, body: Mapping[str, Any], of: type[_T]) -> _T:
        headers = {"content-type": "application/json"}
        return decoded(self._client.post(path, content=msgspec.json.encode(body), headers=headers), of)

    def _card(self) -> _Card:
        return decoded(self._client.get("/v1/models"), _Cards).data[0]


# ── llorch-worker ────────────────────────────────────────────────────────────────────────────────


class _Version(msgspec.Struct, frozen=True):
    version: str


class _Ranked(msgspec.Struct, frozen=True):
    logprob: _Logprob


class _Columns(msgspec.Struct, frozen=True):
    tokens: list[str]
    top_logprobs: list[Annotated[dict[str, _Logprob], msgspec.Meta(min_length=1)]]


class _Choice(msgspec.Struct, frozen=True):
    logprobs: _Columns
    prompt_logprobs: list[dict[int, _Ranked] | None] = []


class _Completion(msgspec.Struct, frozen=True):
    choices: tuple[_Choice]


class OurWorker(Server):
    """A prompt is one request: `prompt_logprobs` has all rows but the last, which the first drawn token has."""

    render_path = "/v1/chat/completions/render"

    def __init__(self, client: httpx2.Client, worker: ServedWorker) -> None:
        super().__init__(client)
        self.worker = worker
        card, version = self._card(), decoded(client.get("/version"), _Version).version
        self.facts = Facts(f"llorch-worker {version}", card.id, card.meta.quant_kind, card.meta.size, card.meta.n_vocab)

    def rows(self, tokens: Sequence[int]) -> list[ReportedRow]:
        choice = self._complete(tokens, 1, prompt_logprobs=N_TOP, logprobs=N_TOP)
        of_prompt = choice.prompt_logprobs[1:]
        rows: list[ReportedRow] = [{token: known.logprob for token, known in row.items()} for row in of_prompt if row]
        rows += [{_id(name): value for name, value in row.items()} for row in choice.logprobs.top_logprobs[:1]]
        if len(rows) != len(tokens):
            raise NotServed(
                f"the server returned log-probabilities of {len(rows)} rows for a prompt of {len(tokens)} tokens"
            )
        return rows

    def _continued(self, prompt: Sequence[int], n_tokens: int) -> list[int]:
        return [_id(name) for name in self._complete(prompt, n_tokens, logprobs=0).logprobs.tokens]

    def _complete(self, prompt: Sequence[int], n_tokens: int, **more: int) -> _Choice:
        body = {"prompt": prompt, "max_tokens": n_tokens, "temperature": 0.0, "return_tokens_as_token_ids": True}
        return self._post("/v1/completions", body | more, _Completion).choices[0]


def _id(name: str) -> int:
    """The id of a token that is named by its number: `token_id:7`. Raises: NotServed."""
    kind, _, number = name.partition(":")
    if kind != "token_id" or not number.isdecimal():
        raise NotServed(f"the server named a token {name[:40]!r} instead of its id")
    return int(number)


# ── llama-server ─────────────────────────────────────────────────────────────────────────────────


class _Props(msgspec.Struct, frozen=True):
    build_info: str
    model_path: str = ""


class _Top(msgspec.Struct, frozen=True):
    id: int
    logprob: _Logprob


class _Drawn(msgspec.Struct, frozen=True):
    id: int
    logprob: _Logprob
    top_logprobs: Annotated[list[_Top], msgspec.Meta(min_length=1)]


class _Prediction(msgspec.Struct, frozen=True):
    tokens: list[int]
    completion_probabilities: list[_Drawn] = []


class LlamaServer(Server):
    """It reports only log-probabilities of drawn tokens, so a prompt needs a request for each of its tokens: the next
    token is drawn because the request raises its logit, and the server reports the row before that."""

    render_path = "/apply-template"

    def __init__(self, client: httpx2.Client, props: _Props) -> None:
        super().__init__(client)
        card = self._card()
        # Of a path only the last part is anyone's business.
        name = PurePath(props.model_path).name or PurePath(card.id).name
        self.facts = Facts(f"llama-server {props.build_info}", name, "other", card.meta.size, card.meta.n_vocab)

    def rows(self, tokens: Sequence[int]) -> list[ReportedRow]:
        return [self._row(tokens[: at + 1], tokens[at + 1 : at + 2]) for at in range(len(tokens))]

    def _row(self, tokens: Sequence[int], following: Sequence[int]) -> ReportedRow:
        drawn = self._drawn(tokens, following, N_TOP)
        # A token that ends inside a character is not reported: then a letter is drawn, and the whole row requested.
        drawn = drawn or self._drawn(tokens, self.tokenize("a")[:1], self.facts.n_vocab)
        if not drawn:
            raise NotServed(f"the server returned no log-probabilities for a prompt of {len(tokens)} tokens")
        known = {top.id: top.logprob for top in drawn[0].top_logprobs} | {drawn[0].id: drawn[0].logprob}
        wanted = [*(top.id for top in drawn[0].top_logprobs[:N_TOP]), *following]
        return {token: known[token] for token in wanted if token in known}

    def _drawn(self, tokens: Sequence[int], forced: Sequence[int], n_probs: int) -> list[_Drawn]:
        """The one token that comes next, which is `forced` where there is one."""
        bias = [[token, _FORCED] for token in forced]
        return self._predict(tokens, 1, n_probs=n_probs, logit_bias=bias).completion_probabilities[:1]

    def _continued(self, prompt: Sequence[int], n_tokens: int) -> list[int]:
        return self._predict(prompt, n_tokens).tokens

    def _predict(self, prompt: Sequence[int], n_tokens: int, **more: object) -> _Prediction:
        body = {"prompt": prompt, "n_predict": n_tokens, "temperature": 0.0, "return_tokens": True}
        return self._post("/completion", {**body, **more}, _Prediction)


# ── which one is it? ─────────────────────────────────────────────────────────────────────────────


@contextmanager
def opened(url: str, token: str | None = None) -> Iterator[Server]:
    """The server at `url`.

    Raises: NotServed for one that is not ready, wants another token, or is neither of the two.
    """
    with ExitStack() as closing:
        client = closing.enter_context(connect(url, token))
        try:
            server = _found(client, closing.enter_context, url, token)
        except (httpx2.HTTPError, msgspec.DecodeError) as error:
            raise NotServed(f"the server at {url} cannot be judged: {error}") from None
        yield server


def _found(client: httpx2.Client, enter: Callable[[ServedWorker], ServedWorker], url: str, token: str | None) -> Server:
    props = client.get("/props")
    if props.status_code == httpx2.codes.OK:
        return LlamaServer(client, msgspec.json.decode(props.content, type=_Props))
    if client.get("/readyz").status_code == httpx2.codes.NOT_FOUND:
        raise NotServed(f"{url} is neither a llorch-worker nor a llama-server: it has no /readyz and no /props")
    return OurWorker(client, enter(ServedWorker.at(url, token)))
