"""Conversations: what is asked, and that only a whole answer counts as one."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worker_process import serve_default
from tools.bench.conversations import Shape, Turn, conversations, converse, read
from tools.bench.exchange import Address, Exchange

SHAPE = Shape(n_conversations=9, n_turns=3, n_groups=2, n_open=3, n_system_words=40, n_user_words=20, think_s=0.0)

HELLO = {"choices": [{"delta": {"content": "Hello"}, "finish_reason": None}]}
END = {"choices": [{"delta": {}, "finish_reason": "length"}]}
USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 40, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 30}},
}


def heard(*chunks: object, status: int = 200, broken: str = "") -> Exchange:
    """An answer with a second between its chunks, the first of which arrives after one."""
    pieces = [(float(at_s), b"data: %b\n\n" % json.dumps(chunk).encode()) for at_s, chunk in enumerate(chunks, start=1)]
    return Exchange(sent_s=0.0, status=status, pieces=pieces, broken=broken)


def test_the_same_seed_says_the_same_and_groups_have_a_system_prompt_each() -> None:
    said = conversations(SHAPE, 5)
    assert said == conversations(SHAPE, 5)
    assert said != conversations(SHAPE, 6)
    assert len({conversation.system for conversation in said}) == SHAPE.n_groups
    assert len({question for conversation in said for question in conversation.questions}) == 27


def test_users_think_for_half_to_one_and_a_half_times_the_mean() -> None:
    thinks_s = [s for conversation in conversations(replace(SHAPE, think_s=4.0), 1) for s in conversation.thinks_s]
    assert 2.0 <= min(thinks_s) < 3.0
    assert 5.0 < max(thinks_s) <= 6.0


def test_a_whole_answer_says_when_its_text_began_and_what_was_known() -> None:
    found = read(heard({"choices": [{"delta": {"role": "assistant"}}]}, HELLO, HELLO, END, USAGE))
    assert (found.text, found.first_s, found.n_prompt, found.n_cached, found.error) == ("HelloHello", 2.0, 40, 30, "")


@pytest.mark.parametrize(
    ("exchange", "error"),
    [
        (heard(HELLO, USAGE), "0 ends"),
        (heard(HELLO, END, HELLO, END, USAGE), "2 ends"),
        (heard(HELLO, END), "0 prompt tokens"),
        (heard(END, USAGE), "cut"),
        (heard(HELLO, END, USAGE, broken="the connection was closed"), "the connection was closed"),
        (heard(HELLO, {"error": {"message": "no"}}), "no"),
        (heard([], status=503), "503"),
        (Exchange(sent_s=0.0), "no end of the answer"),
        (Exchange(sent_s=0.0, status=200, pieces=[(1.0, b"data: {\n\n")]), "no chunk"),
    ],
)
def test_anything_else_is_no_answer(exchange: Exchange, error: str) -> None:
    assert error in read(exchange).error


@pytest.mark.process
@pytest.mark.model
def test_a_worker_knows_all_of_a_conversation_but_the_last_turn(any_model: Path) -> None:
    counted: list[int] = []
    with serve_default(any_model) as worker:
        address = Address("127.0.0.1", worker.ready().port)
        turns = asyncio.run(converse(address, SHAPE, 1, counted.append))
    assert counted == list(range(1, 28))
    assert all(turn.is_answered and not turn.failures for turn in turns)
    assert {(turn.conversation, turn.turn) for turn in turns} == {(c, t) for c in range(9) for t in range(3)}
    before: dict[int, Turn] = {}
    for turn in turns:
        if turn.turn:
            assert turn.n_cached >= before[turn.conversation].n_prompt - 1
        before[turn.conversation] = turn
