"""`POST /infill`: a request in llama-server's shape becomes a text with a gap, and a job the text in the gap."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Annotated, Any, Literal

import msgspec

from worker.apis.core.answers import Allowance, Choice, Heading
from worker.apis.core.bodies import Problems
from worker.apis.core.events import Piece
from worker.apis.core.fields import (
    GeneratingRequest,
    Length,
    Members,
    read_object,
    read_request,
    read_struct,
)
from worker.apis.core.request import Request, Terms
from worker.wire.encoding import Count, doc, encode_json
from worker.wire.jobs import Logprob, StopReason
from worker.wire.prompts import Infill

MAX_FILES = 128

StopType = Literal["eos", "limit", "word"]
_STOP_TYPES: dict[StopReason, StopType] = {"EOS": "eos", "MAX_TOKENS": "limit", "STOP_SEQUENCE": "word"}

_SPELLINGS = {"n_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
"""llama-server's names of fields that have others at `/v1`."""
_UNLIMITED = -1
_NO_FILES_NAME = "tmp"
"""llama-server's name of a file without one."""


class OtherFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that helps to fill the gap."""

    text: str
    filename: str = _NO_FILES_NAME


class InfillRequest(GeneratingRequest, frozen=True, kw_only=True):
    """The body of `POST /infill`. It may also have the sampling fields of `/execute`. A field that is null counts as
    absent. Fields that have no effect are ignored and named in `x-ignored-fields`."""

    input_prefix: Annotated[str | None, doc("The text before the gap.")] = None
    input_suffix: Annotated[str | None, doc("The text after the gap.")] = None
    input_extra: Annotated[list[OtherFile] | None, doc("Further files, at most 128, the nearest last.")] = None
    prompt: Annotated[str | None, doc("The beginning of the text in the gap. The answer continues it.")] = None
    n_predict: Annotated[
        int | None,
        doc("Maximum tokens to generate; -1 has no limit but the context, 0 only computes the prompt.", minimum=-1),
    ] = None
    cache_prompt: Annotated[bool | None, doc("The worker caches every prompt; true is accepted.")] = None
    n_probs: Annotated[int | None, doc("Only /v1/completions reports log-probabilities.", const=0)] = None
    response_fields: Annotated[
        list[str] | None, doc("The members of the answer that are sent, e.g. `content` and `timings/predicted_n`.")
    ] = None


def read_infill(body: bytes | bytearray, terms: Terms) -> Request:
    """Raises: NotAnObject, UnknownModel, FieldsRefused."""
    members = _as_v1(read_object(body))
    request, problems = read_struct(members, InfillRequest)
    _check_rules(problems, request, members, terms)
    idle = {"stream_options": request.stream_options is not None, "cache_prompt": request.cache_prompt is False}
    prompt = Infill(
        prefix=request.input_prefix or "",
        suffix=request.input_suffix or "",
        begun=request.prompt or "",
        files=tuple((file.filename, file.text) for file in request.input_extra or ()),
    )
    read = read_request(
        problems,
        members,
        request,
        terms,
        prompts=[prompt],
        length=Length(request.max_tokens, least=0),
        names={"prompt": "input_prefix", **{ours: theirs for theirs, ours in _SPELLINGS.items()}},
        further=[name for name, is_idle in idle.items() if is_idle],
    )
    n_predict, n_ctx = read.params.max_tokens, terms.n_ctx
    return replace(read, answers=lambda heading: [FillAnswer(request, heading, n_predict=n_predict, n_ctx=n_ctx)])


def _as_v1(members: Members) -> Members:
    """The members with `/v1`'s names and values where llama-server has others."""
    made = dict(members)
    for theirs, ours in _SPELLINGS.items():
        if made.get(theirs) is not None:
            made.setdefault(ours, made[theirs])
            del made[theirs]
    for name in ("max_tokens", "seed"):
        if made.get(name) == _UNLIMITED:
            del made[name]
    return made


def _check_rules(problems: Problems, request: InfillRequest, members: Members, terms: Terms) -> None:
    if not terms.can_infill:
        text = "has no fill-in-the-middle tokens; use a model that has them, such as Qwen2.5-Coder"
        problems.add("input_prefix", "supported", text, subject="the model")
    for name in ("input_prefix", "input_suffix"):
        if members.get(name) is None:
            problems.add(name, "required", "is missing")
    files = request.input_extra or ()
    if len(files) > MAX_FILES:
        problems.add(
            "input_extra", f"max_count({MAX_FILES})", f"must have at most {MAX_FILES} entries (got {len(files)})"
        )
    if request.n is not None and request.n != 1:
        problems.add("n", "one_of", "must be 1: this route has one answer")
    if request.n_probs:
        problems.add("n_probs", "unsupported", "is not supported here; use logprobs of /v1/completions")
    texts = [request.input_prefix, request.input_suffix, request.prompt]
    texts += [text for file in files for text in (file.filename, file.text)]
    n_chars, most = sum(map(len, filter(None, texts))), terms.max_text_chars
    if n_chars > most:
        text = f"input_suffix, prompt and input_extra must be at most {most} characters (got {n_chars})"
        problems.add("input_prefix", f"length(..={most})", text, subject="input_prefix,")


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and times of one answer."""

    cache_n: Annotated[Count, doc("Tokens of the prompt that were cached.")]
    prompt_n: Annotated[Count, doc("Tokens of the prompt that were computed.")]
    prompt_ms: Annotated[int, doc("Milliseconds from the request to the first token.")]
    predicted_n: Count
    predicted_ms: Annotated[int, doc("Milliseconds from the first token to the last.")]
    predicted_per_second: float


class FillSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that editors read."""

    n_ctx: Annotated[Count, doc("The tokens that one request may use.")]
    n_predict: int
    seed: Annotated[int, doc("The seed that the request sent, else the one that was drawn.")]


class Fill(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, and with `stream` its last event. Earlier events have content and `stop: false`."""

    index: Count = 0
    content: str
    id_slot: int = 0
    stop: bool = True
    model: str
    tokens_predicted: Count
    tokens_evaluated: Annotated[Count, doc("Tokens of the prompt.")]
    tokens_cached: Annotated[Count, doc("Tokens of the prompt that were cached.")]
    generation_settings: FillSettings
    truncated: Literal[False] = False
    stop_type: StopType
    stopping_word: str
    timings: Timings


class FillAnswer(Choice):
    """The text in the gap. Its stream has no `[DONE]`."""

    def __init__(self, asked: InfillRequest, heading: Heading, *, n_predict: int, n_ctx: int) -> None:
        super().__init__(0, Allowance(), is_stream=bool(asked.stream))
        self._paths = asked.response_fields
        self._heading = heading
        self._n_predict, self._n_ctx = n_predict, n_ctx
        self._texts: list[str] = []

    def rewind(self) -> None:
        super().rewind()
        self._texts.clear()

    def made(self) -> Mapping[str, Any]:
        event = self.ended
        assert event is not None
        fill = Fill(
            content="".join(self._texts),
            model=self._heading.model,
            tokens_predicted=self.n_drawn,
            tokens_evaluated=self.n_prompt,
            tokens_cached=self.n_cached,
            generation_settings=FillSettings(n_ctx=self._n_ctx, n_predict=self._n_predict, seed=self.seed),
            stop_type=_STOP_TYPES[event.stop_reason],
            stopping_word=event.stop_sequence_matched or "",
            timings=Timings(
                cache_n=self.n_cached,
                prompt_n=self.n_prompt - self.n_cached,
                prompt_ms=event.time_to_first_token_ms,
                predicted_n=self.n_drawn,
                predicted_ms=event.decode_time_ms,
                predicted_per_second=round(1000 * self.n_drawn / (event.decode_time_ms or inf), 2),
            ),
        )
        return chosen(msgspec.to_builtins(fill), self._paths)

    def _grown(self, piece: Piece) -> bytes:
        if self.is_collecting:
            self._texts.append(piece.text)
            return b""
        members = b'"tokens_predicted":%d,"tokens_evaluated":%d' % (self.n_drawn, self.n_prompt)
        return b'data: {"index":0,"content":%b,"stop":false,"id_slot":0,%b}\n\n' % (encode_json(piece.text), members)

    def _ended(self, logprobs: Sequence[Logprob]) -> bytes:  # noqa: ARG002 - there are none
        return b"" if self.is_collecting else b"data: " + encode_json(self.made()) + b"\n\n"


def chosen(answer: Mapping[str, Any], paths: Sequence[str] | None) -> Mapping[str, Any]:
    """The members at these paths (`timings/predicted_n`), each under its path, as llama-server names them. A path that
    leads nowhere is left out. All members if `paths` is None."""
    if paths is None:
        return answer
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = answer
        for part in path.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    return found
