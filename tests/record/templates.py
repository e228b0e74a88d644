"""The chat templates of llama.cpp's source: prompts, the format of their calls, its grammar, and how answers are read.

Prompts and grammars are recorded as digests.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime

import msgspec

from tests.formats.conversations import KINDS, Kind
from tests.formats.trips import ANSWERS, ENDS, TOOLS, Answer, loaded
from tests.formats.writing import Answer as Written
from tests.formats.writing import written
from tests.llama_source import templates
from tests.record.rows import Json
from worker.errors import WorkerError
from worker.formats.grammar.tool_grammar import Controls, EnforcedTool, begins_of, grammar_of_answer, grammar_of_call
from worker.formats.read.parse import Reader, message_of
from worker.formats.render.template import ChatTemplates, Rendered
from worker.formats.tool_format import chat_format
from worker.wire.chat_format import ChatFormat
from worker.wire.prompts import Conversation, OfferedTool

SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
_DAYS = ("%Y-%m-%d", "%B %d, %Y", "%d %b %Y")
"""The forms in which these templates write the day."""
_PIECE = 4
"""The number of characters that a reader gets at once, about a token's."""


def answers(asks: Sequence[Json]) -> Iterator[Json]:
    sources = {path.stem: path.read_text(encoding="utf-8") for path in templates()}
    return (_answer(sources[ask["template"]]) for ask in asks)


def _answer(source: str) -> Json:
    chat = loaded(source)
    if chat is None:
        return {"loads": False}
    form = chat_format(chat.for_tools, ENDS)
    return {
        "caps": sorted(chat.caps),
        "prompts": {name: _prompt(chat, kind) for name, kind in KINDS.items()},
        "format": msgspec.to_builtins(form),
        "grammars": {} if form.calls is None else _grammars(form),
        "readings": {name: _read(form, answer) for name, answer in ANSWERS.items()},
    }


def _prompt(chat: ChatTemplates, kind: Kind) -> str:
    asked = Conversation(
        messages=json.dumps(kind.messages),
        tools=json.dumps(kind.tools) if kind.tools else None,
        template_kwargs=json.dumps(kind.variables or {}),
        add_generation_prompt=kind.is_open,
        continue_final_message=kind.is_continued,
    )
    found = chat.read(asked)
    return _digest(_undated(found.text)) if isinstance(found, Rendered) else f"{found}"


def _undated(text: str) -> str:
    """Return a prompt that is the same on every day."""
    for form in _DAYS:
        text = text.replace(datetime.now().strftime(form), form)
    return text


def _grammars(form: ChatFormat) -> Json:
    assert form.calls is not None
    controls = Controls({}, ())
    tools = [EnforcedTool(OfferedTool(name=name, place=0), schema) for name, schema in SCHEMAS.items()]
    made: Json = {"begins": begins_of(form.calls, tools, controls)}
    for is_parallel in (False, True):
        for write in (grammar_of_answer, grammar_of_call):
            try:
                text = _digest(write(form.calls, tools, controls, is_parallel=is_parallel))
            except WorkerError as refusal:
                text = f"{refusal}"
            made[f"{write.__name__}, {'several' if is_parallel else 'one'}"] = text
    return made


def _read(form: ChatFormat, answer: Answer) -> Json:
    """Return the message that the answer is read as, and a digest of the deltas."""
    try:
        text = written(form, Written(answer.content, answer.reasoning, answer.calls, SCHEMAS))
    except (AssertionError, ValueError, KeyError) as error:
        return {"not written": repr(error)[:200]}
    reader = Reader(form, SCHEMAS, new_id=str)
    pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
    deltas = [delta for piece in pieces for delta in reader.push(piece)] + reader.finish()
    return {"message": asdict(message_of(deltas)), "deltas": _digest(repr(deltas))}


def _digest(text: str) -> str:
    return f"{len(text)} {hashlib.sha256(text.encode()).hexdigest()[:24]}"
