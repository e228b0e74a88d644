"""Outputs of models are read as what they are, in every notation and kind, and in every cutting.

corpus.jsonl has an output a line, and the message that it is. The words are ours, the kinds are those that public
suites and reports show. Each kind has neighbours: what looks alike and means something else.
"""

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.formats.test_parse import read
from tests.formats.trips import loaded
from tests.formats.writing import FORMATS
from tests.llama_source import templates
from tests.tables import table
from worker.formats.grammar.tool_grammar import Controls, EnforcedTool, grammar_of_answer
from worker.formats.read.parse import Arguments, Call, Message, Reader, message_of
from worker.formats.read.plain_calls import MAX_HELD
from worker.formats.tool_format import chat_format
from worker.wire.prompts import OfferedTool


class Line(msgspec.Struct, frozen=True):
    """An output of a family's model, and the message that it is."""

    kind: str
    family: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, dict[str, object]], ...] = ()
    is_reasoning: bool = False
    """The prompt has opened the reasoning."""
    is_cut: bool = False
    """The answer ended at its length. Its last call may be left out, or be handed out as unfinished."""


CORPUS = msgspec.json.Decoder(Line).decode_lines(Path(__file__).with_name("corpus.jsonl").read_bytes())
TOOLS = table(__file__, "TOOLS")
MIN_SHARE = 0.95


def cuttings(line: Line) -> Iterator[list[str]]:
    """Yield the text as a whole, in characters, and in random pieces."""
    text, chance = line.text, random.Random(line.text)
    yield [text]
    yield list(text)
    for n_places in (1, 3, 8):
        places = sorted(chance.choices(range(len(text) + 1), k=n_places))
        yield [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def messages(line: Line) -> list[Message]:
    """Return what the line is read as, each message once."""
    found: list[Message] = []
    for pieces in cuttings(line):
        deltas = read(FORMATS[line.family], TOOLS, pieces, is_cut=line.is_cut, is_reasoning=line.is_reasoning)
        if (message := message_of(deltas)) not in found:
            found.append(message)
    return found


def arguments(call: Call) -> object:
    try:
        return json.loads(call.arguments)
    except ValueError:
        return None


def is_read(line: Line, message: Message) -> bool:
    calls = [(call.name, arguments(call)) for call in message.calls]
    if line.is_cut and calls and calls[-1][1] is None:
        del calls[-1]
    return (message.content, message.reasoning, calls) == (line.content, line.reasoning, list(line.calls))


def test_outputs_of_every_kind_are_read() -> None:
    """The reader reads 95 of 100 right, none differently in other pieces, and no kind is wrong as a whole."""
    kinds: dict[str, list[Line]] = defaultdict(list)
    wrong: dict[str, list[str]] = defaultdict(list)
    for line in CORPUS:
        kinds[line.kind].append(line)
        found = messages(line)
        if len(found) > 1 or not is_read(line, found[0]):
            wrong[line.kind].append(f"{line}\n    {found}")
    for kind, those in kinds.items():
        print(f"{kind}: {len(those) - len(wrong[kind])} of {len(those)}", *wrong[kind], sep="\n")  # noqa: T201
    n_wrong = sum(map(len, wrong.values()))
    assert 1 - n_wrong / len(CORPUS) >= MIN_SHARE
    assert not [kind for kind, those in kinds.items() if len(wrong[kind]) == len(those)]


def test_the_corpus_has_all_families() -> None:
    assert {line.family for line in CORPUS} == FORMATS.keys() - {"generic"}
    assert len(CORPUS) > 2000


def test_a_value_is_held_back_for_at_most_one_call() -> None:
    """A text behind the call's end may be the value's or content. It is not held for ever."""
    reader = Reader(FORMATS["qwen3-coder"], TOOLS, new_id=str)
    begin = "<tool_call>\n<function=save_note>\n<parameter=text>\na\n</function>"
    n_given, n_read = 0, len(begin)
    reader.push(begin)
    while not n_given:
        n_given = sum(len(delta.text) for delta in reader.push("b" * 1000) if isinstance(delta, Arguments))
        n_read += 1000
        assert n_read < MAX_HELD + 3000
    assert n_given > MAX_HELD


@pytest.mark.model
def test_kimi_k3s_section_has_its_whole_end_without_a_vocabulary() -> None:
    """The last token of the section's end also ends the turn, so the template alone does not show it."""
    path = next(path for path in templates() if path.stem == "Kimi-K3")
    chat = loaded(path.read_text())
    assert chat is not None
    calls = chat_format(chat.for_tools).calls
    assert calls is not None
    assert calls.section_end == "<|close|>tools<|sep|>"


def test_an_argument_whose_name_has_signs_is_escaped_in_the_grammar() -> None:
    form = FORMATS["kimi-k3"]
    assert form.calls is not None
    key = 'R&D "x"'
    schema = {"type": "object", "properties": {key: {"type": "integer"}}, "required": [key]}
    tool = EnforcedTool(OfferedTool(name="ring", place=0), schema)
    grammar = grammar_of_answer(form.calls, [tool], Controls({}, ()), is_parallel=False)
    assert "R&amp;D &quot;x&quot;" in grammar
