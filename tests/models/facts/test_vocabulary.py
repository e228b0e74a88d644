"""A vocabulary that llama.cpp cannot load, or dies of, is one line that says which token; others are read.

tests/llama/test_odd_vocabularies.py has that the library refuses each of these, too.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gguf_files import Typed, Value, tiny_model
from tests.llama.odd_vocabularies import GAPPED, NO_BYTES, REFUSED, SERVED
from tests.llama.tiny import write_tiny
from worker.errors import BadModelFile
from worker.models.facts.gguf import MAX_WHOLE_BYTES, MAX_WHOLE_ELEMENTS
from worker.models.facts.info import read_info
from worker.models.facts.spelling import fragments, is_invisible
from worker.models.facts.vocabulary import gaps_of


@pytest.mark.parametrize("kind", REFUSED)
def test_what_ends_the_library_is_one_line_with_its_place(kind: str, tmp_path: Path) -> None:
    vocabulary, why = REFUSED[kind]
    path = write_tiny(tmp_path / "m.gguf", own_vocabulary=vocabulary)
    with pytest.raises(BadModelFile) as caught:
        read_info(path)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(f"{path}: ")
    assert why in line
    assert "tokenizer.ggml." in line


@pytest.mark.parametrize("kind", SERVED)
def test_what_the_library_forgives_is_named(kind: str, tmp_path: Path) -> None:
    vocabulary, remark = SERVED[kind]
    remarks = read_info(write_tiny(tmp_path / "m.gguf", own_vocabulary=vocabulary)).vocabulary_remarks
    assert any(remark in line for line in remarks) if remark else remarks == ()


@pytest.mark.parametrize("kind", GAPPED)
def test_a_gap_is_named_where_the_library_has_nothing_for_the_unknown(kind: str, tmp_path: Path) -> None:
    remarks = read_info(write_tiny(tmp_path / "m.gguf", own_vocabulary=GAPPED[kind])).vocabulary_remarks
    assert any("bytes have no token" in remark for remark in remarks) != ("WordPiece" in kind)


def test_a_token_is_shown_in_part_and_on_one_line(tmp_path: Path) -> None:
    long = "x\ny" * 1000
    changes: dict[str, Value | None] = {"tokenizer.ggml.tokens": [*"abcdef", long, long]}
    with pytest.raises(BadModelFile) as caught:
        read_info(tiny_model(changes).write(tmp_path / "m.gguf"))
    assert "tokens 6 and 7 are both 'x\\ny" in str(caught.value)
    assert len(str(caught.value)) < len(str(tmp_path)) + 200


@pytest.mark.parametrize("key", ["tokenizer.ggml.tokens", "tokenizer.ggml.token_type"])
def test_a_vocabulary_beyond_all_measure_is_refused(key: str, tmp_path: Path) -> None:
    value = ["a"] * (MAX_WHOLE_ELEMENTS + 1) if key.endswith("tokens") else Typed("i32", [1] * (MAX_WHOLE_ELEMENTS + 1))
    with pytest.raises(BadModelFile, match=f"{MAX_WHOLE_ELEMENTS + 1} elements; at most {MAX_WHOLE_ELEMENTS}"):
        read_info(tiny_model({key: value}).write(tmp_path / "m.gguf"))


def test_tokens_of_more_bytes_than_any_vocabulary_has_are_refused(tmp_path: Path) -> None:
    tokens = [f"{number}" + "x" * (MAX_WHOLE_BYTES // 20) for number in range(21)]
    with pytest.raises(BadModelFile, match=f"at most {MAX_WHOLE_BYTES}"):
        read_info(tiny_model({"tokenizer.ggml.tokens": tokens}).write(tmp_path / "m.gguf"))


@given(st.text(alphabet="ab<s>é", max_size=30), st.lists(st.sampled_from(["<s>", "<s>a", "b", "éé"]), unique=True))
def test_fragments_and_the_names_between_them_are_the_text(text: str, names: list[str]) -> None:
    ordered = sorted(names, key=len, reverse=True)
    at, between = 0, []
    for place, part in fragments(text, ordered):
        assert text[place : place + len(part)] == part
        assert not any(name in part for name in names)
        between.append(text[at:place])
        at = place + len(part)
    between.append(text[at:])
    assert set(between) <= {"", *names}


def test_a_whole_alphabet_has_no_gaps() -> None:
    assert gaps_of("llama", "", frozenset(b"<0x%02X>" % byte for byte in range(256))) is None
    assert gaps_of("rwkv", "", frozenset(b"\\x%02x" % byte for byte in range(256))) is None
    assert gaps_of("bert", "", frozenset()) is None


@given(st.characters(exclude_categories=["Cs"]))
def test_a_character_is_deadly_unless_it_or_its_bytes_have_tokens(character: str) -> None:
    tokens = NO_BYTES["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    gaps = gaps_of("llama", "", frozenset(str(token).encode() for token in tokens))
    assert gaps is not None
    assert gaps.is_deadly(character) == (character not in "▁abé😀 ")
    assert gaps.is_deadly(character) == gaps.loses(character)


@pytest.mark.parametrize(("character", "expected"), [("a", False), (" ", False), ("\x04", True), ("\U00050000", True)])
def test_control_characters_and_code_points_without_a_character_are_invisible(character: str, expected: bool) -> None:
    assert is_invisible(character) is expected
