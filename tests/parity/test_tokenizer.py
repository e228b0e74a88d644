"""The tokenizer level names the text, the position and both pieces; bytes are read as llama.cpp reads them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity import corpus
from parity.bounds import Bounds
from parity.corpus import HardText, decode, has_reference
from parity.f32_copy import open_gguf, rewrite
from parity.levels import tokenizer
from parity.reference.model import ReferenceTokenizer
from parity.report import Level
from parity.setups import opened
from worker.llama.model import Model
from worker.wire.jobs import TokenId

AB, END, N_VOCAB, LACKING = 256, 257, 258, 4


def ids_of(data: bytes) -> list[int]:
    """A byte is its own id, but `ab` is AB and `<end>` is END; the vocabulary lacks a byte, which is left out."""
    ids: list[int] = []
    at = 0
    while at < len(data):
        text, token = next(
            ((text, token) for text, token in ((b"ab", AB), (b"<end>", END)) if data.startswith(text, at)),
            (data[at : at + 1], data[at]),
        )
        ids += [token] if token != LACKING else []
        at += len(text)
    return ids


def piece_of(token: int) -> bytes:
    if token >= N_VOCAB:
        raise ValueError(f"token {token} is outside the vocabulary of {N_VOCAB}")
    return {AB: b"ab", END: b""}[token] if token > 255 else bytes([token])


def judge(texts: Sequence[HardText], reference_ids: Sequence[Sequence[int]], bounds: Bounds) -> Level:
    return tokenizer.run(ids_of, reference_ids, texts, bounds, piece=piece_of)


TEXTS = [HardText("one.cab", b"cab"), HardText("one.end", b"a<end>"), HardText("two.empty", b"")]
SAME = [[ord("c"), AB], [ord("a"), END], []]


def test_the_same_ids_pass(bounds: Bounds) -> None:
    level = judge(TEXTS, SAME, bounds)
    assert level.verdict == "pass"
    assert level.summary == "3 of 3 texts are the same ids, 4 in all"


@pytest.mark.parametrize(
    ("which", "ids", "says"),
    [
        (0, [99, 97, 98], "one.cab at token 1: llama.cpp 'ab' (256), the reference 'a' (97)"),
        (0, [99], "one.cab at token 1: llama.cpp 'ab' (256), the reference nothing"),
        (0, [99, AB, 33], "one.cab at token 2: llama.cpp nothing, the reference '!' (33)"),
        (0, [1, 99, AB], r"one.cab at token 0: llama.cpp 'c' (99), the reference '\x01' (1)"),
        (0, [99, 200], r"one.cab at token 1: llama.cpp 'ab' (256), the reference '\\xc8' (200)"),
        (0, [99, 300], "one.cab at token 1: llama.cpp 'ab' (256), the reference an id outside the vocabulary (300)"),
        (1, [97, 60], "one.end at token 1: llama.cpp '' (257), the reference '<' (60)"),
        (2, [97], "two.empty at token 0: llama.cpp nothing, the reference 'a' (97)"),
    ],
)
def test_a_difference_is_named(bounds: Bounds, which: int, ids: list[int], says: str) -> None:
    reference_ids = [*SAME]
    reference_ids[which] = ids
    level = judge(TEXTS, reference_ids, bounds)
    assert level.verdict == "fail"
    assert f"({says})" in level.summary
    assert [(check.value, check.holds) for check in level.checks] == [(1, False), (0, True)]
    assert len(level.tables[0].rows) == 1


def test_the_first_of_several_differences_is_named_and_all_are_counted(bounds: Bounds) -> None:
    level = judge(TEXTS, [SAME[0], [0], [0]], bounds)
    assert level.checks[0].value == 2
    assert "one.end" in level.summary
    assert [row[0] for row in level.tables[0].rows] == ["one.end", "two.empty"]


def test_a_difference_at_a_byte_that_the_vocabulary_lacks_is_distinguished(bounds: Bounds) -> None:
    """The reference leaves the byte out before it merges."""
    level = judge([HardText("one.lacking", b"a\4b")], [[AB]], bounds)
    assert [check.value for check in level.checks] == [0, 1]
    assert level.checks[1].note == "one.lacking at token 0: llama.cpp 'a' (97), the reference 'ab' (256)"


def test_a_text_with_a_surrogate_is_not_compared(bounds: Bounds) -> None:
    surrogate = HardText("invalid.surrogate", b"\xed\xa0\x80")
    level = judge([*TEXTS, surrogate], [*SAME, [1, 2, 3]], bounds)
    assert level.verdict == "pass"
    assert level.summary.startswith("3 of 3 texts")
    assert judge([surrogate], [[]], bounds).verdict == "fail"


@pytest.fixture(scope="module")
def reference_tokenizer(checkpoint: Path) -> ReferenceTokenizer:
    return ReferenceTokenizer.open(checkpoint)


@pytest.fixture(scope="module")
def hard_ids(reference_tokenizer: ReferenceTokenizer) -> list[list[int]]:
    return [reference_tokenizer.tokenize(decode(hard.data)) for hard in corpus.hard_texts()]


@pytest.fixture(scope="module")
def model(default_model: Path) -> Iterator[Model]:
    with opened(default_model) as model:
        yield model


def judge_model(model: Model, hard_ids: Sequence[Sequence[int]], bounds: Bounds) -> Level:
    def piece(token: int) -> bytes:
        return model.piece(TokenId(token))

    return tokenizer.run(model.tokenize_bytes, hard_ids, corpus.hard_texts(), bounds, piece=piece)


@pytest.mark.model
def test_the_default_models_ids_are_those_of_its_reference(
    model: Model, hard_ids: list[list[int]], bounds: Bounds
) -> None:
    """But for one text, where a byte that is in no token lies between characters that merge."""
    within, outside = judge_model(model, hard_ids, bounds).checks
    assert within.holds, within.note
    assert outside.value == 1
    assert outside.note.startswith("controls.low_between_marks at token 0: llama.cpp '!' (17), the reference '!!'")


def without_a_merge(merges: list[str]) -> list[str]:
    return [merge for merge in merges if merge != "Ġwor ld"]


def with_another_special_token(tokens: list[str]) -> list[str]:
    return ["<|im_begin|>" if token == "<|im_start|>" else token for token in tokens]


def with_numbers_cut_otherwise(_: str) -> str:
    """They differ only where two spaces come before a digit."""
    return "gpt-2"


@pytest.mark.model
@pytest.mark.parametrize(
    ("key", "change", "says"),
    [
        ("merges", without_a_merge, "(plain.two_words at token 1: llama.cpp ' wor' ("),
        ("tokens", with_another_special_token, "(special_tokens.start at token 0: llama.cpp '<' ("),
        ("pre", with_numbers_cut_otherwise, "(digits.after_spaces at token 1: llama.cpp ' ' ("),
    ],
)
def test_a_changed_vocabulary_is_named(
    *,
    default_model: Path,
    hard_ids: list[list[int]],
    bounds: Bounds,
    tmp_path: Path,
    key: str,
    change: Callable[[Any], Any],
    says: str,
) -> None:
    key = f"tokenizer.ggml.{key}"
    metadata = {key: change(open_gguf(default_model).fields[key].contents())}
    rewrite(default_model, tmp_path / "copy.gguf", metadata=metadata)
    with opened(tmp_path / "copy.gguf") as changed:
        level = judge_model(changed, hard_ids, bounds)
    assert level.verdict == "fail"
    assert says in level.summary


HARD_TEXTS = {hard.name: hard.data for hard in corpus.hard_texts()}
SURROGATES = ["invalid.surrogate_high", "invalid.surrogate_low", "invalid.surrogate_pair"]


def test_only_surrogates_have_no_reference() -> None:
    assert [name for name, data in HARD_TEXTS.items() if not has_reference(data)] == SURROGATES


def test_the_digest_is_known() -> None:
    """A change of a text changes it here, and the committed reference logits, which quote it, are made again."""
    assert corpus.digest() == "eb0c348454346e06b6f65c2e3f553c038406b69e925a047339c2ba131cf3c130"


@given(text=st.text())
def test_text_is_itself(text: str) -> None:
    assert decode(text.encode()) == text
    assert has_reference(text.encode())


@given(before=st.text(), byte=st.sampled_from([*range(0x80, 0xC0), *range(0xF8, 0x100)]), after=st.text())
def test_a_byte_that_is_none_of_a_text_is_one_replacement(before: str, byte: int, after: str) -> None:
    assert decode(before.encode() + bytes([byte]) + after.encode()) == before + "\ufffd" + after


@given(text=st.text(min_size=1), character=st.characters(min_codepoint=0x80, codec="utf-8"), data=st.data())
def test_each_byte_of_a_cut_character_is_one_replacement(text: str, character: str, data: st.DataObject) -> None:
    """Python has one replacement for the whole of it."""
    whole = character.encode()
    n_left = data.draw(st.integers(1, len(whole) - 1))
    assert decode(text.encode() + whole[:n_left]) == text + "\ufffd" * n_left
    assert decode(whole[:n_left] + b"a" + text.encode()) == "\ufffd" * n_left + "a" + text


def test_an_overlong_form_is_the_character_it_spells() -> None:
    assert decode(b"\xc0\x80 \xc0\xaf \xe0\x80\xaf \xf0\x82\x82\xac \xc1\xbf") == "\0 / / € \x7f"


@pytest.mark.parametrize("point", [0xD800, 0xDBFF, 0xDC00, 0xDFFF])
def test_a_surrogate_is_a_replacement_and_has_no_reference(point: int) -> None:
    data = b"a" + chr(point).encode(errors="surrogatepass")
    assert decode(data) == "a\ufffd"
    assert not has_reference(data)


@pytest.mark.parametrize("data", [b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xf7\xbf\xbf\xbf"])
def test_what_is_beyond_unicode_is_refused(data: bytes) -> None:
    """llama.cpp would end the process."""
    with pytest.raises(ValueError, match="chr"):
        decode(data)
