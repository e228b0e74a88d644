"""The texts are as many and as different as they claim, and bytes are read as llama.cpp reads them."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity import corpus
from parity.corpus import decode, has_reference

TEXTS = {hard.name: hard.data for hard in corpus.hard_texts()}
SURROGATES = ["invalid.surrogate_high", "invalid.surrogate_low", "invalid.surrogate_pair"]


def is_utf_8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# ── the texts ────────────────────────────────────────────────────────────────────────────────────


def test_no_sentence_of_the_text_is_there_twice() -> None:
    sentences = [sentence for sentence in re.split(r"[.!?:]\s|\n+", corpus.text()) if len(sentence) > 15]
    assert [sentence for sentence, n_times in Counter(sentences).items() if n_times > 1] == []
    assert len(sentences) > 200


def test_the_text_is_plain_and_ends_its_lines_alike() -> None:
    text = corpus.text()
    assert len(text) > 16_000
    assert "\r" not in text
    assert "\t" not in text
    assert "\ufeff" not in text
    assert text.endswith(".\n")


def test_there_are_enough_hard_texts_and_no_two_are_the_same() -> None:
    assert len(corpus.hard_texts()) == len(TEXTS) >= 150
    assert len(set(TEXTS.values())) == len(TEXTS)


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("a right-to-left script", "[\u0590-\u06ff]{5}"),
        ("Devanagari", "[\u0900-\u097f]{3}"),
        ("Thai", "[\u0e00-\u0e7f]{5}"),
        ("Chinese", "[\u4e00-\u9fff]{3}"),
        ("Japanese", "[\u3040-\u30ff]{3}"),
        ("Korean", "[\uac00-\ud7af]{3}"),
        ("a character beyond the first plane", "[\U00020000-\U0002ffff]"),
        ("combining marks", "[a-z][\u0300-\u036f]{2}"),
        ("emoji with a joiner", "\U0001f468\u200d"),
        ("a skin tone", "[\U0001f3fb-\U0001f3ff]"),
        ("a run of spaces", " {200}"),
        ("tabs", "\t{3}"),
        ("newlines", "\n{4}"),
        ("CRLF", "\r\n"),
        ("no-break space", "\u00a0"),
        ("other spaces", "[\u2000-\u200a]"),
        ("zero width", "\u200b"),
        ("NUL", "\0"),
        ("a very long word", "[a-z]{300}"),
        ("a very long number", r"\d{300}"),
        ("contractions", "(?i)i'm .*we'll"),
        ("special tokens", re.escape("<|im_start|>")),
        ("broken special tokens", re.escape("<|im_start|") + "(?!>)"),
        ("nothing", r"\A\Z"),
    ],
)
def test_among_the_hard_texts_there_is(what: str, pattern: str) -> None:
    assert any(re.search(pattern, decode(data)) for data in TEXTS.values()), what


@pytest.mark.parametrize("n_digits", range(1, 6))
def test_among_the_hard_texts_there_are_numbers_of(n_digits: int) -> None:
    assert any(re.search(rf"(?<!\d)\d{{{n_digits}}}(?!\d)", decode(data)) for data in TEXTS.values())


def test_only_texts_that_say_so_are_not_utf_8() -> None:
    not_utf_8 = {name for name, data in TEXTS.items() if not is_utf_8(data)}
    assert not_utf_8 == {*(name for name in TEXTS if name.startswith("invalid.")), "special_tokens.after_invalid"}


def test_only_surrogates_have_no_reference() -> None:
    assert [name for name, data in TEXTS.items() if not has_reference(data)] == SURROGATES


def test_there_are_eight_different_prompts() -> None:
    assert len(set(corpus.prompts())) == len(corpus.prompts()) == 8
    assert min(map(len, corpus.prompts())) > 100


def test_the_digest_is_known() -> None:
    """A change of a text changes it here, and the committed reference logits, which quote it, are made again."""
    assert corpus.digest() == "eb0c348454346e06b6f65c2e3f553c038406b69e925a047339c2ba131cf3c130"


# ── bytes as text ────────────────────────────────────────────────────────────────────────────────


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


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xc0\x80", "\0"),
        (b"\xc0\xaf", "/"),
        (b"\xe0\x80\xaf", "/"),
        (b"\xf0\x82\x82\xac", "€"),
        (b"\xc1\xbf", "\x7f"),
    ],
)
def test_an_overlong_form_is_the_character_it_spells(data: bytes, text: str) -> None:
    assert decode(data) == text


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


def test_no_hard_text_is_beyond_unicode() -> None:
    for data in TEXTS.values():
        decode(data)
