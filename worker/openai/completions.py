"""`POST /v1/completions`: a request becomes prompts and its fields, jobs become texts or chunks.

Owns: the route's own fields and shapes, the legacy form of log-probabilities, and vLLM's form of a prompt's. Pure.
"""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from worker.openai.answers import (
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
from worker.openai.fields import (
    GeneratingRequest,
    Generation,
    Terms,
    read_generation,
    read_object,
    read_struct,
)
from worker.protocol.bodies import FieldError
from worker.protocol.events import EndEvent, Piece
from worker.protocol.rules import int_range
from worker.wire.encoding import Count, doc, encode_json
from worker.wire.jobs import MAX_LOGPROBS, Finished, Logprob, MarkUse, Prompt, TokenId
from worker.wire.prompts import Infill

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default, for this route only."""
MAX_CHOICES = 128
"""The most choices of all prompts together."""

PlainPrompt = str | tuple[TokenId, ...]

# ── requests ─────────────────────────────────────────────────────────────────────────────────────


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionAsked:
    """A completion request that has passed every check which does not need its tokens."""

    prompts: tuple[PlainPrompt, ...]
    suffix: str
    """The text after the gap; empty if there is no gap."""
    generation: Generation
    is_echo: bool
    logprobs: int | None
    prompt_logprobs: int | None
    as_ids: bool
    marks: ClassVar[MarkUse] = "hidden"

    @property
    def needs_prompt_logprobs(self) -> int | None:
        """The number of alternatives that the engine reports for each token of a prompt; None if it reports none."""
        asked = [self.prompt_logprobs, self.logprobs if self.is_echo else None]
        return max((n for n in asked if n is not None), default=None)

    def to_engine(self, prompt: PlainPrompt) -> Prompt:
        """The prompt; with a suffix, a text with a gap."""
        return Infill(prefix=prompt, suffix=self.suffix) if self.suffix and isinstance(prompt, str) else prompt

    def choices(self, heading: Heading, echoes: Sequence[Echo | None]) -> list[Choice]:
        """n choices for each prompt, in order. `echoes` has an entry for each prompt."""
        allowance, n = Allowance(), self.generation.n
        echo_of = [echo for echo in echoes for _ in range(n)]
        return [TextAnswer(index, allowance, heading, self, echo) for index, echo in enumerate(echo_of)]


def read_completion(body: bytes | bytearray, terms: Terms) -> CompletionAsked:
    """Raises: NotAnObject, UnknownModel, FieldsRefused."""
    members = read_object(body)
    errors: list[FieldError] = []
    request = read_struct(CompletionRequest, members, errors)
    prompts = tuple(_prompts(request.prompt, terms, errors))
    errors += _rules(request, len(prompts))
    errors += _suffix_errors(request, prompts, terms)
    # vllm-router sends false, and true is no number of tokens.
    logprobs = None if request.logprobs is False else request.logprobs
    generation = read_generation(
        members,
        request,
        terms,
        errors,
        logprobs=logprobs,
        max_tokens=request.max_tokens,
        default_tokens=DEFAULT_MAX_TOKENS,
        min_max_tokens=0 if request.echo else 1,
        names={},
    )
    return CompletionAsked(
        prompts=prompts,
        suffix=request.suffix or "",
        generation=generation,
        is_echo=bool(request.echo),
        logprobs=logprobs,
        prompt_logprobs=request.prompt_logprobs,
        as_ids=bool(request.return_tokens_as_token_ids),
    )


def _prompts(value: Any, terms: Terms, errors: list[FieldError]) -> Iterator[PlainPrompt]:
    """The prompts in any of their four forms; the errors gain an entry for each broken rule."""
    if value is None:
        errors.append(FieldError(field="prompt", constraint="required", message="prompt is missing"))
        return
    is_one = isinstance(value, str) or (isinstance(value, list) and bool(value) and _is_id(value[0]))
    is_mixed = isinstance(value, list) and not is_one and len(set(map(type, value))) > 1
    if is_mixed or not isinstance(value, str | list):
        errors.append(_wrong("prompt", "type", "must be a text, token ids, or a list of either"))
        return
    if not value:
        errors.append(_wrong("prompt", "non_empty", "must not be empty"))
        return
    if not is_one and len(value) > MAX_CHOICES:
        errors.append(_wrong("prompt", f"max_count({MAX_CHOICES})", f"must be at most {MAX_CHOICES} prompts"))
        return
    for place, one in [("prompt", value)] if is_one else [(f"prompt[{at}]", one) for at, one in enumerate(value)]:
        found = _prompt(place, one, terms)
        if isinstance(found, FieldError):
            errors.append(found)
            return
        yield found


def _prompt(place: str, value: Any, terms: Terms) -> PlainPrompt | FieldError:
    max_length = terms.max_text_chars
    if not isinstance(value, str | list):
        return _wrong(place, "type", "must be a text or token ids")
    if not value:
        return _wrong(place, "non_empty", "must not be empty")
    if len(value) > max_length:
        unit = "characters" if isinstance(value, str) else "tokens"
        return _wrong(place, f"length(1..={max_length})", f"must be at most {max_length} {unit} (got {len(value)})")
    return value if isinstance(value, str) else _tokens(place, value, terms.vocab_size)


def _tokens(place: str, value: list[Any], n_vocab: int) -> PlainPrompt | FieldError:
    if not all(map(_is_id, value)):
        return _wrong(place, "type", "must be token ids, which are whole numbers")
    if not all(0 <= token < n_vocab for token in value):
        return _wrong(place, f"vocabulary({n_vocab})", f"must be token ids below {n_vocab}")
    return tuple(value)


def _is_id(value: object) -> bool:
    return type(value) is int  # not a bool


def _wrong(field: str, constraint: str, what: str) -> FieldError:
    return FieldError(field=field, constraint=constraint, message=f"{field} {what}")


def _rules(request: CompletionRequest, n_prompts: int) -> Iterator[FieldError]:
    n = request.n or 1
    if n_prompts * n > MAX_CHOICES >= n:
        what = f"times the number of prompts must be at most {MAX_CHOICES} (got {n_prompts * n})"
        yield _wrong("n", f"max_count({MAX_CHOICES})", what)
    if request.best_of is not None and request.best_of != n:
        yield _wrong("best_of", "unsupported", "must equal n: the worker does not rank completions")
    if request.logprobs is True:
        yield _wrong("logprobs", "type", f"must be a number of tokens, 0 to {MAX_LOGPROBS}")
    yield from int_range("prompt_logprobs", request.prompt_logprobs, 0, MAX_LOGPROBS)
    if request.prompt_logprobs is not None and request.stream:
        yield _wrong("prompt_logprobs", "exclusive(stream)", "cannot go with stream; send one of them")


def _suffix_errors(request: CompletionRequest, prompts: Sequence[PlainPrompt], terms: Terms) -> Iterator[FieldError]:
    if not request.suffix:
        return
    if not terms.can_infill:
        yield _wrong("suffix", "unsupported", "needs a model with fill-in-the-middle tokens, and this one has none")
    if not all(isinstance(prompt, str) for prompt in prompts):
        yield _wrong("suffix", "exclusive(prompt)", "needs a prompt that is a text, not token ids")
    if request.echo:
        yield _wrong("suffix", "exclusive(echo)", "cannot go with echo; send one of them")
    if request.prompt_logprobs is not None:
        yield _wrong("suffix", "exclusive(prompt_logprobs)", "cannot go with prompt_logprobs; send one of them")
    if len(request.suffix) > terms.max_text_chars:
        limit = terms.max_text_chars
        what = f"must be at most {limit} characters (got {len(request.suffix)})"
        yield _wrong("suffix", f"length(..={limit})", what)


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


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
        self, index: int, allowance: Allowance, heading: Heading, asked: CompletionAsked, echo: Echo | None
    ) -> None:
        super().__init__(index, allowance, is_stream=asked.generation.is_stream)
        self._chunks = Chunks(heading, self, asked.generation.options)
        self._asked = asked
        self._echo = echo
        self._begin()

    def _begin(self) -> None:
        asked = self._asked
        self._is_in_prompt = True
        self._texts: list[str] = []
        self._columns = None if asked.logprobs is None else Columns(asked.logprobs, as_ids=asked.as_ids)
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
