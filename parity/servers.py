"""A running llorch-worker judged from outside: its reports of tokens, conversations, rows and greedy continuations.

It has the fields of these routes; client/ has `/execute`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import httpx2
import msgspec

from client.child import NotServed
from client.worker import ServedWorker, connect, decoded
from parity.compare import ReportedRow

N_TOP: Final = 20
"""The number of a row's tokens: as many as a worker reports."""

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


class Server:
    """One worker; made by `opened`. Every method raises UNANSWERED of client/worker.py."""

    def __init__(self, client: httpx2.Client, worker: ServedWorker) -> None:
        self._client = client
        self.worker = worker
        card = decoded(client.get("/v1/models"), _Cards).data[0]
        version = decoded(client.get("/version"), _Version).version
        self.facts = Facts(f"llorch-worker {version}", card.id, card.meta.quant_kind, card.meta.size, card.meta.n_vocab)

    def tokenize(self, text: str) -> list[int]:
        """Special tokens in it are parsed, BOS is not put before it."""
        body = {"content": text, "add_special": False, "parse_special": True}
        return self._post("/tokenize", body, _Tokens).tokens

    def text(self, tokens: Sequence[int]) -> str:
        """Special tokens by their names; bytes that are no character are U+FFFD."""
        return self._post("/detokenize", {"tokens": tokens}, _Content).content

    def render(self, conversation: Sequence[Message]) -> str:
        """The prompt that the conversation becomes."""
        return self._post("/v1/chat/completions/render", {"messages": conversation}, _Rendered).prompt

    def rows(self, tokens: Sequence[int]) -> list[ReportedRow]:
        """The log-probabilities that it reports for each token's row: N_TOP tokens and the next token.

        One request: `prompt_logprobs` has all rows but the last, which the first drawn token has.
        """
        choice = self._complete(tokens, 1, prompt_logprobs=N_TOP, logprobs=N_TOP)
        of_prompt = choice.prompt_logprobs[1:]
        rows: list[ReportedRow] = [{token: known.logprob for token, known in row.items()} for row in of_prompt if row]
        rows += [{_id(name): value for name, value in row.items()} for row in choice.logprobs.top_logprobs[:1]]
        if len(rows) != len(tokens):
            raise NotServed(
                f"the server returned log-probabilities of {len(rows)} rows for a prompt of {len(tokens)} tokens"
            )
        return rows

    def greedy(self, prompt: Sequence[int], n_tokens: int) -> list[int]:
        """The most probable continuation; after an end token the server is asked how it would go on."""
        found: list[int] = []
        while len(found) < n_tokens:
            so_far = [*prompt, *found]
            more = [_id(name) for name in self._complete(so_far, n_tokens - len(found), logprobs=0).logprobs.tokens]
            if not more:
                raise NotServed(f"the server generated no token after a prompt of {len(so_far)} tokens")
            found += more
        return found[:n_tokens]

    def _complete(self, prompt: Sequence[int], n_tokens: int, **more: int) -> _Choice:
        body = {"prompt": prompt, "max_tokens": n_tokens, "temperature": 0.0, "return_tokens_as_token_ids": True}
        return self._post("/v1/completions", body | more, _Completion).choices[0]

    def _post(self, path: str, body: Mapping[str, Any], of: type[_T]) -> _T:
        headers = {"content-type": "application/json"}
        return decoded(self._client.post(path, content=msgspec.json.encode(body), headers=headers), of)


def _id(name: str) -> int:
    """The id of a token that is named by its number: `token_id:7`. Raises: NotServed."""
    kind, _, number = name.partition(":")
    if kind != "token_id" or not number.isdecimal():
        raise NotServed(f"the server named a token {name[:40]!r} instead of its id")
    return int(number)


@contextmanager
def opened(url: str, token: str | None = None) -> Iterator[Server]:
    """The worker at `url`. Raises: NotServed if it is not ready, wants another token, or is no worker."""
    with ExitStack() as closing:
        client = closing.enter_context(connect(url, token))
        try:
            if client.get("/readyz").status_code == httpx2.codes.NOT_FOUND:
                raise NotServed(f"{url} is not a llorch-worker: it has no /readyz")
            server = Server(client, closing.enter_context(ServedWorker.at(url, token)))
        except (httpx2.HTTPError, msgspec.DecodeError) as error:
            raise NotServed(f"the server at {url} cannot be judged: {error}") from None
        yield server
