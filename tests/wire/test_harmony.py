"""A message's head says what the text behind it is."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.record.rows import read
from worker.wire.harmony import body_of, mention, n_begun, recipient_of


@pytest.mark.parametrize("head", read(Path(__file__).with_name("heads.jsonl")), ids=str)
def test_a_head_says_what_its_body_is_and_is_a_mention_if_it_begins_no_message(head: dict[str, str | None]) -> None:
    role, header, body = str(head["role"]), head["header"], head["body"]
    assert body_of(role, header) == body
    written = f"<|start|>{role}" + ("" if header is None else f"<|channel|>{header}")
    assert mention(role, header, is_ended=False) == written
    assert mention(role, header, is_ended=True) == (written + "<|message|>" if body == "unknown" else "")


def test_the_header_s_recipient_counts_before_the_role_s() -> None:
    assert recipient_of("assistant to=a", "commentary to=b") == "b"
    assert recipient_of("assistant to=a", "commentary") == "a"
    assert recipient_of("assistant", None) == ""


@given(st.text("to=ab \n<", max_size=9))
def test_what_is_no_role_at_once_never_becomes_one(text: str) -> None:
    """So an answer without a head can be shown as it comes."""
    is_answer = [n_begun(text[:n]) < n for n in range(len(text) + 1)]
    assert is_answer == sorted(is_answer)
    assert n_begun(" to=functions.get ") == 18
