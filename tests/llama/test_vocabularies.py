"""Tokens and text for every kind of vocabulary, on llama.cpp's own test vocabularies (tests/vocabularies.py)."""

import ctypes
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cpp import llama_cpp as capi

from tests.engine.text_reference import any_cuts, check_against_the_reference, chunked, finished_text, stops_cut_from
from tests.llama_source import folder
from tests.vocabularies import VOCABULARIES, Vocabulary, texts
from worker.llama.devices import devices
from worker.llama.library import Watch, open_library
from worker.llama.model import Model
from worker.models.facts.gguf import read_header
from worker.models.facts.vocabulary import WHOLE_ARRAYS, check_vocabulary
from worker.models.plan.devices import choose_device
from worker.wire.jobs import TokenId

pytestmark = pytest.mark.model

LAW = settings(max_examples=50)

TYPES = {
    "byte-level BPE": capi.LLAMA_VOCAB_TYPE_BPE,
    "BPE with byte fallback": capi.LLAMA_VOCAB_TYPE_BPE,
    "SentencePiece": capi.LLAMA_VOCAB_TYPE_SPM,
    "Unigram": capi.LLAMA_VOCAB_TYPE_UGM,
    "WordPiece": capi.LLAMA_VOCAB_TYPE_WPM,
}

UNKNOWN, NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 4, 8, 16, 32
"""llama_token_attr (llama.h)."""

SPACE = "▁"
"""The character that stands for a space in vocabularies that are not byte-level."""

BYTE_OF = {chr(byte): byte for byte in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))}
BYTE_OF |= {chr(256 + place): byte for place, byte in enumerate(sorted(set(range(256)) - set(BYTE_OF.values())))}
"""The alphabet of byte-level BPE: printable bytes are themselves, the others in order from U+0100 on (GPT-2)."""


@dataclass(frozen=True)
class Loaded:
    vocabulary: Vocabulary
    model: Model

    @cached_property
    def attributes(self) -> list[int]:
        return [int(capi.llama_vocab_get_attr(self.model.vocab, token)) for token in self.tokens]

    @cached_property
    def raw_texts(self) -> list[str]:
        """The tokens as they stand in the file, not as they are rendered."""
        return [capi.llama_vocab_get_text(self.model.vocab, token).decode() for token in self.tokens]

    @cached_property
    def special(self) -> list[TokenId]:
        """All but the ordinary tokens: unknown, unused, control, user-defined, bytes."""
        return [token for token in self.tokens if self.attributes[token] != NORMAL]

    @cached_property
    def lacking_bytes(self) -> bytes:
        """The bytes that a byte-level vocabulary lacks."""
        return bytes(set(range(256)) - {BYTE_OF[text] for text in self.raw_texts if text in BYTE_OF})

    @cached_property
    def tokens(self) -> list[TokenId]:
        return [TokenId(token) for token in range(self.model.n_vocab)]

    @property
    def bos(self) -> list[int]:
        return [] if self.vocabulary.bos is None else [self.vocabulary.bos]

    def pieces(self, tokens: list[TokenId]) -> list[bytes]:
        return [self.model.piece(token) for token in tokens]

    def rendered(self, text: str) -> bytes:
        return b"".join(self.pieces(self.model.tokenize(text)))


@pytest.fixture(scope="module", params=VOCABULARIES, ids=lambda vocabulary: vocabulary.name)
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    vocabulary: Vocabulary = request.param
    with load_vocabulary(vocabulary) as model:
        yield Loaded(vocabulary, model)


def load_vocabulary(vocabulary: Vocabulary) -> Model:
    """Load a file without weights, as Model.load would; the check of the vocabulary refuses nothing."""
    path, cpu = vocabulary.path, choose_device("cpu", devices())
    open_library()
    params = capi.llama_model_default_params()
    params.vocab_only = True
    handle = capi.llama_model_load_from_file(os.fsencode(path), params)
    assert handle, f"llama.cpp does not read {path}"
    header = read_header(path.read_bytes(), path, whole=WHOLE_ARRAYS)
    _, gaps = check_vocabulary(header.metadata)
    return Model(handle, (cpu,), Watch(), gaps)


def any_tokens(loaded: Loaded) -> st.SearchStrategy[list[TokenId]]:
    """Special ones, bytes among them, as often as ordinary ones."""
    ordinary = st.integers(0, loaded.model.n_vocab - 1).map(TokenId)
    return st.lists(st.one_of(ordinary, st.sampled_from(loaded.special)), max_size=16)


def test_the_table_names_every_file_of_upstreams() -> None:
    there = {path for path in folder().iterdir() if path.is_file()}
    assert there == {path for one in VOCABULARIES for path in (one.path, *one.case_paths)}


def test_a_vocabulary_is_of_its_kind(loaded: Loaded) -> None:
    assert capi.llama_vocab_type(loaded.model.vocab) == TYPES[loaded.vocabulary.kind]


# ── text to tokens ───────────────────────────────────────────────────────────────────────────────


def test_a_text_becomes_the_reference_tokenisers_tokens(loaded: Loaded) -> None:
    """Upstream tokenises them without BOS and without parsing special tokens, of which these texts have none."""
    cases = loaded.vocabulary.cases()
    found = [(text, loaded.model.tokenize(text)) for text, _ in cases]
    assert found == [(text, loaded.bos + tokens) for text, tokens in cases]


@pytest.mark.parametrize("character", "1a! 世")
def test_a_long_run_of_one_kind_of_character_is_tokenised(loaded: Loaded, character: str) -> None:
    """A std::regex that splits the text calls itself for each character: an ordinary stack ends after 30,000."""
    tokens = loaded.model.tokenize(character * 60_000)
    assert tokens or loaded.vocabulary.kind in {"Unigram", "WordPiece"}


def test_a_special_tokens_text_is_that_token(loaded: Loaded) -> None:
    """BOS, where a prompt begins with it, is not added again."""
    special = [token for token in loaded.tokens if loaded.attributes[token] & (UNKNOWN | CONTROL | USER_DEFINED)]
    found = {token: loaded.model.tokenize(loaded.raw_texts[token]) for token in special}
    assert found == {token: loaded.bos + [token] * ([token] != loaded.bos) for token in special}


# ── tokens to bytes ──────────────────────────────────────────────────────────────────────────────


def expected_piece(loaded: Loaded, token: TokenId) -> bytes:
    attributes, text = loaded.attributes[token], loaded.raw_texts[token]
    if attributes & (UNKNOWN | CONTROL):
        return b""
    if attributes & USER_DEFINED:
        return text.encode()
    if attributes & BYTE:
        return bytes.fromhex(text.removeprefix("<0x").removesuffix(">"))
    if not attributes & NORMAL:
        return b""
    if loaded.vocabulary.kind == "byte-level BPE":
        return b"".join(expected_byte(char, text) for char in text)
    return text.replace(SPACE, " ").encode()


def expected_byte(char: str, text: str) -> bytes:
    """A character outside the alphabet is llama.cpp's own mark: Command R's vocabulary has such tokens."""
    return bytes([BYTE_OF[char]]) if char in BYTE_OF else f"[UNK_BYTE_0x{char.encode().hex()}{text}]".encode()


def test_every_token_is_rendered_as_its_kind_says(loaded: Loaded) -> None:
    """Control, unknown and unused tokens as nothing; a byte token as its byte; user-defined ones as they stand."""
    wrong = [token for token in loaded.tokens if loaded.model.piece(token) != expected_piece(loaded, token)]
    assert wrong == []


def test_eos_is_an_end_and_no_end_has_a_text(loaded: Loaded) -> None:
    eos = int(capi.llama_vocab_eos(loaded.model.vocab))
    ends = [TokenId(token) for token in loaded.model.ends.tolist()]
    assert eos in ends or eos < 0
    assert all(loaded.model.is_end(token) for token in ends)
    assert {loaded.model.piece(token) for token in ends} == {b""}


@LAW
@given(data=st.data())
def test_the_pieces_are_the_librarys_own_detokenisation(loaded: Loaded, data: st.DataObject) -> None:
    """It differs in two things, by design: the library forgets a space that its tokeniser put before the text, and
    tidies the whole text of some vocabularies. A continuation has a real space there, and what is shown stays."""
    tokens = data.draw(any_tokens(loaded))
    pieces = loaded.pieces(tokens)
    if loaded.vocabulary.kind in ("SentencePiece", "Unigram"):
        pieces[:1] = [piece.removeprefix(b" ") for piece in pieces[:1]]
    assert detokenized(loaded.model, tokens) in (b"".join(pieces), tidied(b"".join(pieces)))


def detokenized(model: Model, tokens: list[TokenId]) -> bytes:
    buffer = ctypes.create_string_buffer(1 << 16)
    array = (capi.llama_token * len(tokens))(*tokens)
    n = int(capi.llama_detokenize(model.vocab, array, len(tokens), buffer, len(buffer), False, False))
    assert n >= 0, "the buffer is too small"
    return buffer.raw[:n]


def tidied(text: bytes) -> bytes:
    """clean_up_tokenization_spaces, as llama_detokenize has it."""
    text = re.sub(rb" (?=[?!.,])", b"", text)
    text = re.sub(rb" ' ", b"'", text)
    return re.sub(rb" (?='(?:s|m|re|ve))", b"", text)


# ── text to tokens to text ───────────────────────────────────────────────────────────────────────

LATIN = st.text(st.characters(max_codepoint=0x24F, codec="utf-8"), max_size=40)


@LAW
@given(data=st.data())
def test_a_text_comes_back(loaded: Loaded, data: st.DataObject) -> None:
    check_round_trip(loaded, data.draw(st.one_of(st.text(max_size=40), LATIN), label="text"))


def test_upstreams_texts_come_back(loaded: Loaded) -> None:
    for text in texts():
        check_round_trip(loaded, text)


def check_round_trip(loaded: Loaded, text: str) -> None:
    match loaded.vocabulary.kind:
        case "byte-level BPE":
            # Some vocabularies lack bytes that hardly occur; the tokeniser drops them.
            assert loaded.rendered(text) == text.encode().translate(None, delete=loaded.lacking_bytes)
        case "BPE with byte fallback":
            assert loaded.rendered(text).decode() == text.replace(SPACE, " ")
        case "SentencePiece":
            assert loaded.rendered(text).decode() == (f" {text}" if text else "").replace(SPACE, " ")
        case "Unigram" | "WordPiece":
            check_second_trip(loaded, text)


def check_second_trip(loaded: Loaded, text: str) -> None:
    """These fold case, accents and spaces; but what they kept, they keep, unless a part of the text was unknown."""
    tokens = loaded.model.tokenize(text)
    pieces = loaded.pieces(tokens[1:])
    if all(pieces):
        assert loaded.model.tokenize(b"".join(pieces).decode()) == tokens


# ── the law of the stream (docs/protocol.md#post-execute) ────────────────────────────────────────────────────────


@LAW
@given(data=st.data())
def test_any_tokens_and_upstreams_texts_stream_as_the_decoded_text_cut_at_the_stop(
    loaded: Loaded, data: st.DataObject
) -> None:
    """Token by token, and in any other pieces."""
    said = st.sampled_from(texts()).map(loaded.model.tokenize)
    pieces = loaded.pieces(data.draw(any_tokens(loaded) | said, label="tokens"))
    whole = b"".join(pieces)
    stops = data.draw(stops_cut_from(finished_text(whole)), label="stops")
    check_against_the_reference(pieces, stops)
    check_against_the_reference(chunked(whole, data.draw(any_cuts, label="cuts")), stops)
