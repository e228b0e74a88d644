"""The tokens of a tool's name in JSON, however its text is cut into tokens."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.formats.writing import pieces_of
from worker.wire.names import N_TAIL, NAME_KEYS, is_in_name

keys = st.sampled_from(NAME_KEYS)
spaces = st.sampled_from(["", " ", "\n  "])
names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}", fullmatch=True)


def flagged(pieces: list[str]) -> list[bool]:
    raw = [piece.encode() for piece in pieces]
    return [is_in_name(raw[:at]) for at in range(len(raw))]


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[str], int, int]:
    """A call cut into tokens of few characters, and the place of its name."""
    before = draw(st.sampled_from(["", "Ah:\n```json\n"])) + draw(st.sampled_from(["{", "{\n  "]))
    before += f'"{draw(keys)}"{draw(spaces)}:{draw(spaces)}"'
    name = draw(names)
    text = f'{before}{name}", "arguments": {{"city": "Oslo"}}}}'
    pieces = [piece for piece in draw(pieces_of(text)) if piece]
    return pieces, len(before), len(before) + len(name)


@given(calls())
def test_each_token_of_a_name_is_one_and_those_of_arguments_are_none(case: tuple[list[str], int, int]) -> None:
    pieces, begin, end = case
    at = 0
    for piece, is_flagged in zip(pieces, flagged(pieces), strict=True):
        if begin - 1 <= at < end:
            assert is_flagged, "it begins with the quote before the name, or in the name"
        if at > end:
            assert not is_flagged, "it begins behind the quote after the name"
        at += len(piece)


@given(st.text(alphabet='{}[]",: \nabc'), st.integers(1, 4))
def test_a_text_without_such_a_key_has_none(text: str, size: int) -> None:
    assert not any(flagged([text[at : at + size] for at in range(0, len(text), size)]))


def test_what_lies_far_back_does_not_count() -> None:
    opened = [*json.dumps({"name": ""})[:-2]]
    assert is_in_name([piece.encode() for piece in opened])
    assert not is_in_name([piece.encode() for piece in [*opened, *"x" * N_TAIL]])
