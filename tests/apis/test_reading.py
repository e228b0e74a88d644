"""A call that is not in the model's own form is one only if the model was sure of the tool's name."""

from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.apis.asking import HEADING, entry, finish
from tests.apis.wires import READ, Wire
from tests.formats.writing import pieces_of
from worker.apis.chat.message import ChatAnswer, ChatMessage
from worker.apis.core.answers import Allowance
from worker.apis.core.events import Piece
from worker.apis.core.reading import MIN_SURE, Names, Reading
from worker.apis.core.tools import Tool, ToolUse
from worker.wire.jobs import Logprob
from worker.wire.names import is_in_name

NAME = "set_light"
ARGUMENTS = '{"room": "hall"}'
CALL = f'{{"name": "{NAME}", "arguments": {ARGUMENTS}}}'
FENCED, OWN = f"```json\n{CALL}\n```", f"<tool_call>\n{CALL}\n</tool_call>"
SCHEMA = {"type": "object", "properties": {"room": {"type": "string"}}}
READING = Reading(use=ToolUse(tools=(Tool(name=NAME, given_name=NAME, schema=SCHEMA),)))
SURE, UNSURE = 0.0, 2 * MIN_SURE


def drawn(pieces: Sequence[str], value: float) -> list[Logprob]:
    """The tokens of a text, of which the name as a whole has this log-probability, as the engine reports them."""
    raw = [piece.encode() for piece in pieces]
    begin = "".join(pieces).index(NAME)
    ends = list(accumulate(map(len, pieces)))
    of_name = [end > begin and end - len(piece) < begin + len(NAME) for piece, end in zip(pieces, ends, strict=True)]
    return [
        replace(
            entry(piece, number, value / sum(of_name) if of_name[number] else -9.0),
            is_of_name=is_in_name(raw[:number]),
        )
        for number, piece in enumerate(pieces)
    ]


def reading() -> ChatAnswer:
    return ChatAnswer(0, Allowance(), HEADING, None, READING)


def ended(answer: ChatAnswer) -> ChatMessage:
    finish(answer, "EOS", 1)
    return answer.made().message


def message(pieces: Sequence[str], value: float, *, is_asked: bool = True) -> ChatMessage:
    """`is_asked`: the client wants the log-probability of every token; else only those of names are there."""
    answer = reading()
    for piece, token in zip(pieces, drawn(pieces, value), strict=True):
        answer.token(Piece(piece, 0, [token] if is_asked or token.is_of_name else []))
    return ended(answer)


def called(found: ChatMessage) -> list[str]:
    return [call.function.name for call in found.tool_calls or ()]


def tokens_of(text: str) -> st.SearchStrategy[list[str]]:
    """Cuts of a text where the quote before the name is no part of a longer token: such a token is not reported."""
    quote = text.index(f'"{NAME}')
    return st.tuples(pieces_of(text[:quote]), pieces_of(text[quote:])).map(
        lambda parts: [piece for piece in (*parts[0], *parts[1]) if piece]
    )


@given(pieces=tokens_of(FENCED), value=st.floats(10 * MIN_SURE, 0), is_asked=st.booleans())
def test_a_fenced_call_counts_if_the_name_was_probable_enough(pieces: list[str], value: float, is_asked: bool) -> None:
    found = message(pieces, value, is_asked=is_asked)
    if abs(value - MIN_SURE) > 1e-9:
        assert bool(called(found)) == (value > MIN_SURE)
        assert found.content == (None if called(found) else FENCED)


@given(pieces=tokens_of(OWN), value=st.floats(-50, 0))
def test_a_call_in_the_models_own_form_counts_however_sure_it_was(pieces: list[str], value: float) -> None:
    assert called(message(pieces, value)) == [NAME]


def test_each_of_several_calls_counts_by_its_own_name() -> None:
    answer = reading()
    for value in (SURE, UNSURE, SURE):
        for piece, token in zip(FENCED, drawn(FENCED, value), strict=True):
            answer.token(Piece(piece, 0, [token]))
        answer.token(Piece("\n"))
    found = ended(answer)
    assert (len(called(found)), (found.content or "").strip()) == (2, FENCED)


def test_a_name_of_which_nothing_is_known_counts() -> None:
    assert Names().is_sure(NAME)


def test_an_answer_that_begins_again_forgets_its_names() -> None:
    answer = reading()
    for piece, token in zip(FENCED, drawn(FENCED, UNSURE), strict=True):
        answer.token(Piece(piece, 0, [token]))
    answer.rewind()
    answer.token(Piece(FENCED))
    assert called(ended(answer)) == [NAME]


@pytest.mark.parametrize("wire", READ)
@pytest.mark.parametrize("value", [SURE, UNSURE])
def test_every_protocol_reads_by_the_names(wire: Wire, value: float) -> None:
    found = [
        Piece(text, number, [token] if token.is_of_name else [], number + 1)
        for number, (text, token) in enumerate(zip([*FENCED], drawn([*FENCED], value), strict=True))
    ]
    stream = wire.streamed(*found, tools=wire.offering({NAME: SCHEMA}))
    assert bool(wire.told(wire.folded(stream)).calls) == (value == SURE)
    assert b"-9.0" not in stream
