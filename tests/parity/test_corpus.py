"""The texts are as many and as different as they claim, and bytes are read as llama.cpp reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity import corpus
from parity.corpus import decode, has_reference

TEXTS = {hard.name: hard.data for hard in corpus.hard_texts()}
SURROGATES = ["invalid.surrogate_high", "invalid.surrogate_low", "invalid.surrogate_pair"]


# ── the texts ────────────────────────────────────────────────────────────────────────────────────


def test_only_surrogates_have_no_reference() -> None:
    assert [name for name, data in TEXTS.items() if not has_reference(data)] == SURROGATES


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
