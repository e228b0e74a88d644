"""The tokenizer level passes on the same ids, and otherwise names the text, the position and both pieces."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from parity import corpus
from parity.bounds import Bounds
from parity.corpus import HardText, decode
from parity.f32_copy import open_gguf, rewrite
from parity.levels import tokenizer
from parity.reference.model import ReferenceTokenizer
from parity.report import Level
from parity.setups import opened
from worker.llama.model import Model
from worker.wire.jobs import TokenId

# ── a tokenizer that one can read ────────────────────────────────────────────────────────────────

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


# ── the default model ────────────────────────────────────────────────────────────────────────────


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


# ── negative controls ────────────────────────────────────────────────────────────────────────────


@pytest.mark.model
def test_a_dropped_merge_is_named(
    default_model: Path, hard_ids: list[list[int]], bounds: Bounds, tmp_path: Path
) -> None:
    merges = open_gguf(default_model).fields["tokenizer.ggml.merges"].contents()
    merges.remove("Ġwor ld")
    level = judge_copy(default_model, {"tokenizer.ggml.merges": merges}, hard_ids, bounds, tmp_path)
    assert level.verdict == "fail"
    assert "(plain.two_words at token 1: llama.cpp ' wor' (" in level.summary
    assert "the reference ' world' (" in level.summary


@pytest.mark.model
def test_a_changed_special_token_is_named(
    default_model: Path, hard_ids: list[list[int]], bounds: Bounds, tmp_path: Path
) -> None:
    tokens = open_gguf(default_model).fields["tokenizer.ggml.tokens"].contents()
    tokens[tokens.index("<|im_start|>")] = "<|im_begin|>"
    level = judge_copy(default_model, {"tokenizer.ggml.tokens": tokens}, hard_ids, bounds, tmp_path)
    assert level.verdict == "fail"
    assert "(special_tokens.start at token 0: llama.cpp '<' (" in level.summary
    assert {row[0].partition(".")[0] for row in level.tables[0].rows} <= {"special_tokens", "controls"}


@pytest.mark.model
def test_another_way_of_cutting_numbers_is_named(
    default_model: Path, hard_ids: list[list[int]], bounds: Bounds, tmp_path: Path
) -> None:
    """One that differs only where two spaces come before a digit."""
    level = judge_copy(default_model, {"tokenizer.ggml.pre": "gpt-2"}, hard_ids, bounds, tmp_path)
    assert level.verdict == "fail"
    assert "(digits.after_spaces at token 1: llama.cpp ' ' (" in level.summary


def judge_copy(
    source: Path, metadata: dict[str, object], hard_ids: list[list[int]], bounds: Bounds, folder: Path
) -> Level:
    rewrite(source, folder / "copy.gguf", metadata=metadata)
    with opened(folder / "copy.gguf") as changed:
        return judge_model(changed, hard_ids, bounds)
