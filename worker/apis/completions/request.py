"""`POST /v1/completions`: a request becomes prompts and its fields, jobs become texts or chunks."""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import msgspec

from worker.apis.core.answers import (
    NO_OPTIONS,
    Allowance,
    Choice,
    Chunks,
    FinishReason,
    Heading,
    Usage,
    array,
    finite,
    json_array,
)
from worker.apis.core.bodies import Problems
from worker.apis.core.events import EndEvent, Piece
from worker.apis.core.fields import GeneratingRequest, Length, read_object, read_request, read_struct
from worker.apis.core.request import Request, Terms
from worker.apis.core.rules import int_range
from worker.wire.encoding import Count, doc, encode_json
from worker.wire.jobs import MAX_LOGPROBS, Finished, Logprob, TokenId
from worker.wire.prompts import Infill

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default, for this route only."""
MAX_CHOICES = 128
"""The most choices of all prompts together."""

PlainPrompt = str | tuple[TokenId, ...]


class CompletionRequest(GeneratingRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`. It may also have the sampling fields of `/execute`. A field that is null
    counts as absent. Fields that have no effect are ignored and named in `x-ignored-fields`."""

    prompt: Annotated[Any, doc("A text, token ids, or a list of either: raw model input, no template is applied.")] = (
        None
    )
    suffix: Annotated[
        str | None,
        doc("The text after the gap that the answer fills. The prompt, a text, is then the text before it."),
    ] = None
    echo: Annotated[bool | None, doc("Begin the answer with the prompt.")] = None
    logprobs: Annotated[
        bool | int | None,
        doc(
            "Report each token's log-probability and this many of the most probable tokens; false is off.",
            minimum=0,
            maximum=20,
        ),
    ] = None
    best_of: Annotated[int | None, doc("Must equal n if it is sent.")] = None
    prompt_logprobs: Annotated[
        int | None, doc("Report the prompt's log-probabilities as vLLM does. Not with stream.", minimum=0, maximum=20)
    ] = None
    return_tokens_as_token_ids: Annotated[bool | None, doc("Write tokens as `token_id:7` in log-probabilities.")] = None


@dataclass(frozen=True, slots=True)
class Echo:
    """The beginning of an answer with `echo`."""

    text: str
    first: TokenId | None = None
    """The prompt's first token, which has no log-probability; None if the request asks for no log-probabilities."""
    first_text: str = ""


def read_completion(body: bytes | bytearray, terms: Terms) -> Request:
    """Raises: NotAnObject, UnknownModel, FieldsRefused."""
    members = read_object(body)
    request, problems = read_struct(members, CompletionRequest)
    prompts = tuple(_prompts(problems, request.prompt, terms))
    _check_rules(problems, request, len(prompts))
    _check_suffix(problems, request, prompts, terms)
    # vllm-router sends false, and true is no number of tokens.
    logprobs = None if request.logprobs is False else request.logprobs
    read = read_request(
        problems,
        members,
        request,
        terms,
        prompts=[_with_gap(prompt, request.suffix) for prompt in prompts],
        length=Length(request.max_tokens, DEFAULT_MAX_TOKENS, 0 if request.echo else 1),
        names={},
        logprobs=logprobs,
    )
    reported = [request.prompt_logprobs, logprobs if request.echo else None]
    return replace(
        read,
        is_echo=bool(request.echo),
        prompt_logprobs=max((n for n in reported if n is not None), default=None),
        answers=partial(_answers, msgspec.structs.replace(request, logprobs=logprobs)),
    )


def _with_gap(prompt: PlainPrompt, suffix: str | None) -> PlainPrompt | Infill:
    return Infill(prefix=prompt, suffix=suffix) if suffix and isinstance(prompt, str) else prompt


def _answers(request: CompletionRequest, heading: Heading, echoes: Sequence[Echo | None]) -> list[Choice]:
    """n choices for each prompt, in order. `echoes` has an entry for each prompt."""
    allowance = Allowance()
    echo_of = [echo for echo in echoes for _ in range(request.n or 1)]
    return [TextAnswer(index, allowance, heading, request, echo) for index, echo in enumerate(echo_of)]


def _prompts(problems: Problems, value: Any, terms: Terms) -> Iterator[PlainPrompt]:
    """Yield the prompts in any of their four forms."""
    if value is None:
        problems.add("prompt", "required", "is missing")
        return
    is_one = isinstance(value, str) or (isinstance(value, list) and bool(value) and _is_id(value[0]))
    is_mixed = isinstance(value, list) and not is_one and len(set(map(type, value))) > 1
    if is_mixed or not isinstance(value, str | list):
        problems.add("prompt", "type", "must be a text, token ids, or a list of either")
    elif not value:
        problems.add("prompt", "non_empty", "must not be empty")
    elif not is_one and len(value) > MAX_CHOICES:
        problems.add("prompt", f"max_count({MAX_CHOICES})", f"must be at most {MAX_CHOICES} prompts")
    else:
        for at, one in enumerate([value] if is_one else value):
            found = _prompt(problems, "prompt" if is_one else f"prompt[{at}]", one, terms)
            if found is None:
                return
            yield found


def _prompt(problems: Problems, place: str, value: Any, terms: Terms) -> PlainPrompt | None:
    most, n_vocab = terms.max_text_chars, terms.vocab_size
    if not isinstance(value, str | list):
        problems.add(place, "type", "must be a text or token ids")
    elif not value:
        problems.add(place, "non_empty", "must not be empty")
    elif len(value) > most:
        unit = "characters" if isinstance(value, str) else "tokens"
        problems.add(place, f"length(1..={most})", f"must be at most {most} {unit} (got {len(value)})")
    elif isinstance(value, str):
        return value
    elif not all(map(_is_id, value)):
        problems.add(place, "type", "must be token ids, which are whole numbers")
    elif not all(0 <= token < n_vocab for token in value):
        problems.add(place, f"vocabulary({n_vocab})", f"must be token ids below {n_vocab}")
    else:
        return tuple(value)
    return None


def _is_id(value: object) -> bool:
    return type(value) is int  # not a bool


def _check_rules(problems: Problems, request: CompletionRequest, n_prompts: int) -> None:
    n = request.n or 1
    if n_prompts * n > MAX_CHOICES >= n:
        text = f"times the number of prompts must be at most {MAX_CHOICES} (got {n_prompts * n})"
        problems.add("n", f"max_count({MAX_CHOICES})", text)
    if request.best_of is not None and request.best_of != n:
        problems.add("best_of", "unsupported", "must equal n: the worker does not rank completions")
    if request.logprobs is True:
        problems.add("logprobs", "type", f"must be a number of tokens, 0 to {MAX_LOGPROBS}")
    int_range(problems, "prompt_logprobs", request.prompt_logprobs, 0, MAX_LOGPROBS)
    if request.prompt_logprobs is not None and request.stream:
        problems.add("prompt_logprobs", "exclusive(stream)", "cannot go with stream; send one of them")


def _check_suffix(problems: Problems, request: CompletionRequest, prompts: Sequence[PlainPrompt], terms: Terms) -> None:
    if not request.suffix:
        return
    if not terms.can_infill:
        problems.add("suffix", "unsupported", "needs a model with fill-in-the-middle tokens, and this one has none")
    if not all(isinstance(prompt, str) for prompt in prompts):
        problems.add("suffix", "exclusive(prompt)", "needs a prompt that is a text, not token ids")
    if request.echo:
        problems.add("suffix", "exclusive(echo)", "cannot go with echo; send one of them")
    if request.prompt_logprobs is not None:
        problems.add("suffix", "exclusive(prompt_logprobs)", "cannot go with prompt_logprobs; send one of them")
    if len(request.suffix) > terms.max_text_chars:
        limit = terms.max_text_chars
        text = f"must be at most {limit} characters (got {len(request.suffix)})"
        problems.add("suffix", f"length(..={limit})", text)


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """The log-probabilities of a text's tokens, one entry each. With `echo` the prompt's tokens come first, and the
    first of them has null."""

    text_offset: Annotated[msgspec.Raw, json_array({"type": "integer", "minimum": 0})]
    token_logprobs: Annotated[msgspec.Raw, json_array({"type": ["number", "null"]})]
    tokens: Annotated[msgspec.Raw, json_array({"type": "string"})]
    top_logprobs: Annotated[
        msgspec.Raw, json_array({"type": ["object", "null"], "additionalProperties": {"type": "number"}})
    ]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of n answers to a prompt."""

    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    prompt_logprobs: Annotated[msgspec.Raw | msgspec.UnsetType, json_array({"type": ["object", "null"]})] = (
        msgspec.UNSET
    )


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that does not stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: Annotated[Count, doc("Unix time in seconds.")]
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage


class RankedToken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token of a prompt or one of its alternatives, in vLLM's form."""

    logprob: float
    rank: int | None = None
    """The place among all tokens by probability, if it is known."""
    decoded_token: str


class Columns:
    """Log-probabilities in the legacy shape: four lists with an entry for each token. Their items are JSON."""

    def __init__(self, n_top: int, *, as_ids: bool) -> None:
        self._n_top = n_top
        self._as_ids = as_ids
        self._at = 0
        """The place in the choice's text where the next token's text begins, in characters."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rows: list[tuple[bytes, bytes, bytes, bytes]] = []

    def add_first(self, echo: Echo) -> None:
        """Add the token that has no log-probability. A token that the tokeniser put before the text has no characters
        in it."""
        assert echo.first is not None
        self._append(self._name(echo.first_text, echo.first), b"null", b"null")
        self._at = len(echo.first_text) if echo.text.startswith(echo.first_text) else 0

    def add(self, entry: Logprob) -> int:
        """Add a token's entry. Returns the number of its bytes."""
        token = entry.token
        top: dict[str, float] = {}
        for other in (token, *entry.top[: self._n_top]):
            name = self._name(other.text, other.id)
            # Tokens that are parts of a character may have the same text.
            top[name] = max(finite(other.logprob), top.get(name, other.logprob))
        n_bytes = self._append(self._name(token.text, token.id), encode_json(finite(token.logprob)), encode_json(top))
        self._at += len(self._decoder.decode(token.piece))
        return n_bytes

    def go_to(self, at: int) -> None:
        """Set the place where the next token's text begins."""
        self._at = at
        self._decoder.reset()

    def take(self) -> CompletionLogprobs:
        """Return and remove the entries added since the last call."""
        rows, self._rows = self._rows, []
        offsets, logprobs, tokens, tops = map(array, zip(*rows, strict=True) if rows else ((), (), (), ()))
        return CompletionLogprobs(text_offset=offsets, token_logprobs=logprobs, tokens=tokens, top_logprobs=tops)

    def _name(self, text: str, token: TokenId) -> str:
        return f"token_id:{token}" if self._as_ids else text

    def _append(self, name: str, logprob: bytes, top: bytes) -> int:
        self._rows.append((b"%d" % self._at, logprob, encode_json(name), top))
        return sum(map(len, self._rows[-1]))


class TextAnswer(Choice):
    """A text, which may begin with its prompt. A stream sends that echo with the first token, because the job may run
    again until then."""

    kind = "text_completion"
    shape = Completion

    def __init__(
        self, index: int, allowance: Allowance, heading: Heading, asked: CompletionRequest, echo: Echo | None
    ) -> None:
        super().__init__(index, allowance, is_stream=bool(asked.stream))
        self._chunks = Chunks(heading, self, asked.stream_options or NO_OPTIONS)
        self._asked = asked
        self._echo = echo
        self._begin()

    def _begin(self) -> None:
        asked = self._asked
        self._is_in_prompt = True
        self._texts: list[str] = []
        self._columns = (
            None if asked.logprobs is None else Columns(asked.logprobs, as_ids=bool(asked.return_tokens_as_token_ids))
        )
        self._of_prompt: list[bytes] | None = None if asked.prompt_logprobs is None else [b"null"]
        if self._columns is not None and self._echo is not None:
            self._columns.add_first(self._echo)

    def rewind(self) -> None:
        super().rewind()
        self._begin()

    def prompt_logprobs(self, tokens: Sequence[Logprob]) -> bytes:
        if self._columns is not None and self._echo is not None:
            self._hold(sum(map(self._columns.add, tokens)))
        if self._of_prompt is not None:
            assert self._asked.prompt_logprobs is not None
            items = [encode_json(_ranked(entry, self._asked.prompt_logprobs)) for entry in tokens]
            self._of_prompt += items
            self._hold(sum(map(len, items)))
        return b""

    def token(self, piece: Piece) -> bytes:
        return self._echoed() + super().token(piece)

    def end(self, event: EndEvent, finished: Finished, logprobs: Sequence[Logprob] = ()) -> bytes:
        return self._echoed() + super().end(event, finished, logprobs)

    def made(self) -> CompletionChoice:
        assert self.finish_reason is not None
        return CompletionChoice(
            index=self.index,
            text="".join(self._texts),
            logprobs=None if self._columns is None else self._columns.take(),
            finish_reason=self.finish_reason,
            prompt_logprobs=msgspec.UNSET if self._of_prompt is None else array(self._of_prompt),
        )

    def _grown(self, piece: Piece) -> bytes:
        return self._text(piece.text, piece.logprobs)

    def _ended(self, logprobs: Sequence[Logprob]) -> bytes:
        return self._text("", logprobs, encode_json(self.finish_reason))

    def _echoed(self) -> bytes:
        """Add the echo once; all further tokens are generated. Returns its chunk."""
        is_first, self._is_in_prompt = self._is_in_prompt, False
        if self._echo is None or not is_first:
            return b""
        chunk = self._text(self._echo.text)
        if self._columns is not None:
            self._columns.go_to(len(self._echo.text))
        if not self.is_collecting:
            self._hold(-self._n_held)
        return chunk

    def _text(self, text: str, logprobs: Sequence[Logprob] = (), reason: bytes = b"null") -> bytes:
        """Return the chunk of a text in a stream, or keep it."""
        n_bytes = 0 if self._columns is None else sum(map(self._columns.add, logprobs))
        if self.is_collecting:
            self._hold(n_bytes)
            self._texts.append(text)
            return b""
        entries = b"null" if self._columns is None else encode_json(self._columns.take())
        return self._chunks.chunk(b'"text":' + encode_json(text), entries, reason)


def _ranked(entry: Logprob, n_top: int) -> dict[str, RankedToken]:
    """The token itself and the most probable tokens by their ids, in vLLM's form."""
    ranks = {other.id: rank for rank, other in enumerate(entry.top, 1)}
    return {
        str(token.id): RankedToken(logprob=finite(token.logprob), rank=ranks.get(token.id), decoded_token=token.text)
        for token in (entry.token, *entry.top[:n_top])
    }
