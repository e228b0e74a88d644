"""A message's head says what the text behind it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.wire.harmony import Body, body_of, mention, n_begun, recipient_of

HEADS: list[tuple[str, str | None, Body]] = [
    ("assistant", None, "content"),
    ("assistant", "final", "content"),
    ("assistant", "commentary", "content"),
    ("assistant", " final <|constrain|>json", "content"),
    ("assistant", "final json", "content"),
    ("assistant", "commentary to=user", "content"),
    ("assistant to=user", None, "content"),
    ("assistant", "analysis", "reasoning"),
    ("assistant to=self", None, "reasoning"),
    ("assistant", "commentary to=self", "reasoning"),
    ("assistant", "analysis to=assistant", "reasoning"),
    ("assistant", "commentary to=functions.get <|constrain|>json", "call"),
    ("assistant", "commentary to=functions.get<|constrain|>json", "call"),
    ("assistant to=functions.get", "commentary", "call"),
    ("assistant to=get", None, "call"),
    ("assistant", "analysis to=python code", "call"),
    ("assistant", "", "unknown"),
    ("assistant", "??", "unknown"),
    ("assistant", "finally", "unknown"),
    ("assistant", "final words of a thought", "unknown"),
    ("assistant", "photo=functions.get", "unknown"),
]


@pytest.mark.parametrize(("role", "header", "body"), HEADS)
def test_a_head_says_what_its_body_is(role: str, header: str | None, body: Body) -> None:
    assert body_of(role, header) == body


def test_the_header_s_recipient_counts_before_the_role_s() -> None:
    assert recipient_of("assistant to=a", "commentary to=b") == "b"
    assert recipient_of("assistant to=a", "commentary") == "a"
    assert recipient_of("assistant", None) == ""


@pytest.mark.parametrize(("role", "header", "body"), HEADS)
def test_a_head_is_a_mention_if_it_begins_no_message(role: str, header: str | None, body: Body) -> None:
    written = f"<|start|>{role}" + ("" if header is None else f"<|channel|>{header}")
    assert mention(role, header, is_ended=False) == written
    assert mention(role, header, is_ended=True) == (written + "<|message|>" if body == "unknown" else "")


@given(st.text("to=ab \n<", max_size=9))
def test_what_is_no_role_at_once_never_becomes_one(text: str) -> None:
    """So an answer without a head can be shown as it comes."""
    is_answer = [n_begun(text[:n]) < n for n in range(len(text) + 1)]
    assert is_answer == sorted(is_answer)
    assert n_begun(" to=functions.get ") == 18
