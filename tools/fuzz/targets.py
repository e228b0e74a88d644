"""The parsers of bytes that others make, and their laws: any bytes give a value or the one error that is documented.

A target takes bytes and raises whatever its parser raises besides, and AssertionError where the law of its value is
broken. This module knows neither how bytes are found (__main__.py) nor where they are kept (corpus.py).
"""

import json
import struct
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from math import inf
from pathlib import Path

import msgspec
import numpy as np

from tests.apis.asking import TERMS
from tests.formats.writing import FORMATS, Answer, written
from tests.gguf_files import GgufFile, tiny_model
from worker.apis.chat.request import read_chat
from worker.apis.completions.request import read_completion
from worker.apis.core.bodies import FieldsRefused
from worker.apis.core.errors import NotAnObject, UnknownModel
from worker.apis.core.received import correlation_id, is_json_content_type, parse_deadline, request_id, trace_context
from worker.apis.core.request import Terms
from worker.apis.infill.request import read_infill
from worker.apis.infill.tokens import read_detokenize, read_tokenize
from worker.apis.messages.request import read_counted, read_messages
from worker.apis.pool.execute import BodyRejected, checked_prompt, parse_cancel, parse_execute
from worker.apis.responses.request import read_response
from worker.config.engine_settings import inbound_decoder
from worker.constraints.gbnf import BadGrammar, check_lark, lark_of
from worker.errors import BadModelFile, UnreadableDeadline
from worker.formats.read.deltas import Delta, Message, message_of
from worker.formats.read.parse import Reader
from worker.formats.render.sandbox import BrokenTemplate, Sandbox, Unrendered
from worker.models.facts.gguf import read_header
from worker.models.facts.info import read_info
from worker.models.upstream.numbers import STATE_MAGIC
from worker.server.saved.copies import Layout, joined, parse_checkpoint, parse_seq_state, passing
from worker.server.saved.records import CELLS, CHECKPOINT, Untrusted, read_record, record_of
from worker.wire.encoding import FrameBuffer, encode_frame, encode_messagepack
from worker.wire.jobs import Accepted, Cancel, JobKey, SamplingParams, Submit, TokenId
from worker.wire.messages import outbound_decoder

Target = Callable[[bytes], None]

_READERS: tuple[Callable[[bytes, Terms], object], ...] = (
    *(read_chat, read_completion, read_response, read_messages, read_counted, read_infill),
    *(read_tokenize, read_detokenize),
)

_PATH = Path("m.gguf")
_KEY, _BINDING = b"key", bytes(32)
_LAYOUTS = (Layout(), Layout(is_mrope=True), Layout(n_caches=2), Layout(n_caches=0, n_state_bytes=64))
_TOOLS = {"run": {"type": "object", "properties": {"code": {"type": "string"}, "n": {"type": "integer"}}}}
_FUEL, _MAX_CHARS = 20_000, 20_000


def header(data: bytes) -> None:
    """A GGUF header, or one line that names the file."""
    try:
        found = read_header(data, _PATH)
    except BadModelFile as error:
        _check_line(str(error), str(_PATH))
        return
    assert all(tensor.name for tensor in found.tensors)


def model_file(data: bytes) -> None:
    """A model's facts, or one line that names the file: the header and all that its keys mean."""
    path = _folder() / "m.gguf"
    path.write_bytes(data)
    _read_model(path)


def vocabulary(data: bytes) -> None:
    """A vocabulary of which each line is a token or, after a byte 1, a merge. The first byte chooses the tokeniser."""
    kind, _, lines = data.partition(b"\n")
    rows = lines.decode("latin-1").split("\n")[:200]
    tokens = [row for row in rows if not row.startswith("\x01")]
    merges = [row[1:] for row in rows if row.startswith("\x01")]
    tokenizer = ("gpt2", "llama", "bert", "t5", "rwkv", "none")[(kind or b"\0")[0] % 6]
    keys = {
        "tokenizer.ggml.model": tokenizer,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges or None,
        "tokenizer.ggml.scores": None,
        "tokenizer.ggml.token_type": None,
        "llama.vocab_size": len(tokens),
    }
    _read_model(tiny_model(keys).write(_folder() / "v.gguf"))


def frames(data: bytes) -> None:
    """The frames between the two processes: any cutting gives the same, and what is read is written the same."""
    whole, cut = FrameBuffer(), FrameBuffer()
    found, why = _fed(whole, [data])
    assert _fed(cut, [data[i : i + 3] for i in range(0, len(data), 3)]) == (found, why)
    for body in [*found, data]:
        for decoder in (inbound_decoder, outbound_decoder):
            try:
                message = decoder.decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            again = encode_messagepack(message)
            assert encode_messagepack(decoder.decode(again)) == again


def answer(data: bytes) -> None:
    """The text of an answer with calls, in every notation: any pieces give the message of the whole."""
    chosen, size, text = data[:1], data[1:2], data[2:].decode(errors="replace")
    form = [*FORMATS.values()][(chosen or b"\0")[0] % len(FORMATS)]
    n_chars = 1 + (size or b"\0")[0] % 9

    def said(pieces: list[str], *, is_cut: bool) -> Message:
        reader = Reader(form, _TOOLS, new_id=lambda index: f"id-{index}")
        deltas: list[Delta] = [delta for piece in pieces for delta in reader.push(piece)]
        return message_of([*deltas, *reader.finish(is_cut=is_cut)])

    pieces = [text[i : i + n_chars] for i in range(0, len(text), n_chars)]
    assert said(pieces, is_cut=False) == said([text], is_cut=False)
    cut, whole = said(pieces, is_cut=True), said([text], is_cut=True)
    # The last value of a call that is cut may be given out as far as the pieces have shown that it goes on.
    assert (cut.content, cut.reasoning, len(cut.calls)) == (whole.content, whole.reasoning, len(whole.calls))


def template(data: bytes) -> None:
    """A chat template, and behind a byte 0 the JSON of its values: a text, or one of two errors on one line."""
    source, _, values = data.partition(b"\0")
    try:
        given = json.loads(values.decode(errors="replace") or "{}")
    except (ValueError, RecursionError):
        given = {}
    try:
        made = Sandbox(source.decode(errors="replace"), lambda: datetime(2026, 1, 1, tzinfo=UTC))
        made.render({"messages": given} if not isinstance(given, dict) else given, fuel=_FUEL, max_chars=_MAX_CHARS)
    except (BrokenTemplate, Unrendered) as error:
        _check(str(error))


def grammar(data: bytes) -> None:
    """A grammar in GBNF, or its error with a place; and the check of one in Lark."""
    text = data.decode(errors="replace")
    for read in (lambda: lark_of(text, lambda name: TokenId(7) if len(name) % 2 else None), lambda: check_lark(text)):
        try:
            read()
        except BadGrammar as error:
            _check_line(str(error), "")


def record(data: bytes) -> None:
    """A file of cached cells: the record that was made, or the reason not to trust it."""
    try:
        found = read_record(data, key=_KEY, binding=_BINDING)
    except Untrusted as error:
        _check_line(str(error), "")
        return
    assert len(found.tokens) * 4 + len(found.state) < len(data)


def state(data: bytes) -> None:
    """The cells in such a file, as llama.cpp writes them: they are written again as they were read, or refused."""
    layout = _LAYOUTS[(data[:1] or b"\0")[0] % len(_LAYOUTS)]
    items = np.frombuffer(data[1:], np.uint8)
    try:
        found = parse_seq_state(items, layout) if layout.n_caches else None
        n_tokens = parse_checkpoint(items, layout)
        assert n_tokens >= 0
    except ValueError:
        return
    if found is not None and found.n_cells:
        assert joined([found], passing).tobytes() == items.tobytes()


def request(data: bytes) -> None:
    """A body of every route that reads one: a request, or errors that it can be answered with."""
    for read in _READERS:
        try:
            read(data, TERMS)
        except (NotAnObject, UnknownModel, FieldsRefused) as error:
            _check(str(error))
    for parse in (parse_cancel, _parsed_execute):
        try:
            parse(data)
        except (BodyRejected, FieldsRefused) as error:
            _check(str(error))


def _parsed_execute(body: bytes) -> object:
    return checked_prompt(parse_execute(body), 64, 100, max_prompt_chars=1000)


def headers(data: bytes) -> None:
    """Header values that we read ourselves."""
    text = data.decode("latin-1")
    assert correlation_id(text)
    assert request_id(text) in (None, text)
    is_json_content_type(text)
    assert set(trace_context([(b"traceparent", data), (b"tracestate", data)])) <= {"traceparent", "tracestate"}
    try:
        assert abs(parse_deadline(text)) < inf
    except UnreadableDeadline as error:
        _check_line(str(error), "")


TARGETS: dict[str, Target] = {
    each.__name__: each
    for each in (header, model_file, vocabulary, frames, answer, template, grammar, record, state, request, headers)
}


def _check(said: str) -> None:
    """Check a text for a client or an operator."""
    assert 0 < len(said) < 2000


def _read_model(path: Path) -> None:
    try:
        found = read_info(path)
    except BadModelFile as error:
        _check_line(str(error), str(path))
        return
    assert found.vocab_size > 0


def _fed(buffer: FrameBuffer, portions: list[bytes]) -> tuple[list[bytes], str]:
    """The frames of the portions, and why no more come; a frame that is impossible ends the connection."""
    found: list[bytes] = []
    try:
        for portion in portions:
            for frame in buffer.feed(portion):
                found.append(frame)
    except ValueError as error:
        return found, str(error)
    return found, ""


def _check_line(line: str, start: str) -> None:
    _check(line)
    assert line.startswith(start)
    assert "\n" not in line


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuzz-"))


def seeds(name: str) -> Iterator[bytes]:
    """Good inputs to begin with, from which a fuzzer finds others."""
    tiny: GgufFile = tiny_model()
    match name:
        case "header" | "model_file":
            yield tiny.to_bytes()
        case "vocabulary":
            yield b"\0\n" + b"\n".join([b"a", b"b", b"ab", b"\x01a b", b"<s>", b"</s>"])
            yield b"\1\n" + b"\n".join([b"<unk>", b"<0x0A>", b"\xe2\x96\x81a", b"b"])
        case "answer":
            for index, form in enumerate(FORMATS.values()):
                calls = [("run", {"code": "<a>", "n": 1})] if form.calls is not None else []
                text = written(form, Answer(content="Hi", thought="why", calls=calls, tools=_TOOLS))
                yield bytes([index, 3]) + text.encode()
        case "template":
            values = b'{"messages":[{"role":"user","content":"Hi","n":1.5}],"tools":[{"a":null}]}'
            yield b"{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}{% endfor %}\0" + values
        case "grammar":
            yield b'root ::= "a" [b-d]{1,3} (x | "\\u0041")* <think>\nx ::= [^"\\n]? # c\n'
            yield b'%llguidance {}\nstart: "a" /[0-9]+/ ("," start)?'
        case "request":
            yield b'{"job_id":"a","prompt":"b","max_tokens":1,"stop":["c"],"logit_bias":{"7":1},"json_schema":{}}'
            yield (
                b'{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":null,'
                b'"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}],"tools":[],'
                b'"tool_choice":"auto","max_tokens":1,"stream":true,"input":"a","response_format":{"type":"text"}}'
            )
        case "headers":
            yield b"2026-11-26T12:00:00Z"
            yield b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        case "state":
            yield b"\0" + _cells()
            yield b"\3" + struct.pack("<IiIiIII", STATE_MAGIC, 0, 1, 7, 0, 0, 1) + struct.pack("<iQ", 0, 4) + bytes(4)
        case "record":
            for kind in (CELLS, CHECKPOINT):
                yield b"".join(record_of([1, 2, 3], _cells(), key=_KEY, binding=_BINDING, kind=kind))
        case "frames":
            yield encode_frame(Cancel(job=JobKey(7)))
            submit = Submit(job=JobKey(7), prompt="a", sampling=SamplingParams(seed=1, max_tokens=1), salt=b"s")
            yield encode_frame(submit) + encode_frame(Accepted(job=JobKey(7), prompt_tokens=1))


def _cells() -> bytes:
    """The state of a sequence of two cells in a memory of one layer."""
    head = struct.pack("<IiII", STATE_MAGIC, 0, 1, 2) + struct.pack("<6i", 0, 1, 0, 1, 1, 0)
    return head + struct.pack("<II", 0, 1) + (struct.pack("<iQ", 0, 4) + bytes(range(8))) * 2
