"""The vocabulary and the facts of a real model, and of a tiny one where the real one has no such case."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.llama.conftest import Loaded
from tests.llama.tiny import BOS, END, LONG_PIECE, TOKENS, write_tiny
from tests.on_cpu import loaded_on_cpu
from tools.fire.models import model as random_model
from worker.errors import ModelLoadFailed
from worker.llama.model import Model
from worker.models.facts.info import read_info
from worker.wire.jobs import TokenId

NO_TOKEN = "\x04\x06\x13\x14\x16\x1d"
"""The default model's vocabulary lacks these bytes, and those that begin code points from U+40000 on."""
KNOWN = st.characters(codec="utf-8", exclude_characters=NO_TOKEN, max_codepoint=0x3FFFF)

UTF8_PARTS = [bytes([byte]) for byte in (*range(0x7E, 0x82), 0x90, 0xBF, 0xC0, 0xC3, 0xE0, 0xED, *range(0xF0, 0x100))]


def text_of(model: Model, tokens: list[TokenId]) -> str:
    return b"".join(model.piece(token) for token in tokens).decode()


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A model whose vocabulary has words of its own."""
    with loaded_on_cpu(random_model(tmp_path_factory.mktemp("own"), "attention")) as model:
        yield model


@pytest.mark.model
def test_a_load_reports_progress_and_what_it_holds(loaded: Loaded, model_path: Path) -> None:
    """The library prints hundredths of a MiB, and maps the tensors with the padding between them."""
    assert loaded.percents == sorted(set(loaded.percents))
    assert loaded.percents[0] >= 0
    assert loaded.percents[-1] == 100
    info = read_info(model_path)
    assert loaded.model.n_vocab == info.vocab_size
    sizes = loaded.model.sizes
    twice = info.tied_bytes if sizes.of_kind("model", ["CPU_REPACK"]) else 0
    assert sizes.of_kind("model") == pytest.approx(info.weights_bytes + twice, rel=0.01)


@pytest.mark.model
@pytest.mark.usefixtures("default_model")
def test_the_default_models_tokens_are_known(model: Model) -> None:
    assert model.ends.tolist() == [0, 2, 4]
    assert [token for token in range(model.n_vocab) if model.is_end(TokenId(token))] == [0, 2, 4]
    texts = ("<|im_start|>", "", "certainly more than one")
    assert [model.token_of(text) for text in texts] == [1, None, None]


@pytest.mark.model
@given(text=st.text(st.characters(codec="utf-8")) | st.text(KNOWN))
@example(text="naïve 🎈 \0 Ελλάδα " * 1500)
@pytest.mark.usefixtures("default_model")
def test_the_pieces_of_a_text_are_the_text(loaded: Loaded, text: str) -> None:
    """Any text of bytes that the vocabulary has, NUL included, and however long; its bytes give the same tokens."""
    tokens = loaded.model.tokenize(text)
    assert loaded.model.tokenize_bytes(text.encode()) == tokens
    if not set(text) & set(NO_TOKEN) and max(text, default="") < "\U00040000":
        assert text_of(loaded.model, tokens) == text


@pytest.mark.model
@given(data=st.binary() | st.lists(st.sampled_from(UTF8_PARTS)).map(b"".join))
def test_any_bytes_are_tokenised_or_refused(loaded: Loaded, data: bytes) -> None:
    """The library ends the process on those that are refused."""
    with suppress(ValueError):
        tokens = loaded.model.tokenize_bytes(data)
        assert all(0 <= token < loaded.model.n_vocab for token in tokens)


@pytest.mark.model
@pytest.mark.parametrize("data", [b"\xf4\x90\x80\x80", b"a\xf5\x80\x80\x80", b"\xf0\x9f\x98\xf7\xbf\xbf\xbf"])
def test_bytes_that_spell_no_code_point_are_refused(model: Model, data: bytes) -> None:
    with pytest.raises(ValueError, match="code point"):
        model.tokenize_bytes(data)


@pytest.mark.model
@pytest.mark.parametrize("token", [-1, 49152, 2**31])
def test_a_token_outside_the_vocabulary_is_refused(model: Model, token: int) -> None:
    with pytest.raises(ValueError, match="vocabulary"):
        model.piece(TokenId(token))
    with pytest.raises(ValueError, match="vocabulary"):
        model.is_end(TokenId(token))


@given(st.lists(st.sampled_from(["<tool_call>", "</think>", "a", " ", "\n", "{", "é", "東"]), max_size=6).map("".join))
def test_a_text_with_words_of_the_vocabularys_own_is_spelled(owner: Model, text: str) -> None:
    """This kind of tokenizer puts a space behind each of them, and before the text."""
    assert text_of(owner, owner.spell(text.encode())) == text


@pytest.mark.parametrize("text", ["a", "", "<s>a", "<s>", "</s>", "<s><s>a"])
def test_bos_comes_first_and_never_twice(tiny: Model, text: str) -> None:
    """Two that the prompt itself has are its own, and so are those in bytes."""
    tokens = tiny.tokenize(text)
    assert tokens[0] == BOS
    assert tokens.count(TokenId(BOS)) == max(1, text.count("<s>"))
    assert tiny.tokenize_bytes(text.encode()).count(TokenId(BOS)) == text.count("<s>")


def test_no_bos_where_the_metadata_says_so(tmp_path: Path) -> None:
    with loaded_on_cpu(write_tiny(tmp_path / "tiny.gguf", has_bos=False)) as model:
        assert BOS not in model.tokenize("a")
        assert model.tokenize("<s>a")[0] == BOS


def test_bytes_are_raw_and_a_piece_may_be_long(tiny: Model) -> None:
    tokens = (3, 13, 258, TOKENS.index(LONG_PIECE))
    assert [tiny.piece(TokenId(token)) for token in tokens] == [b"\0", b"\n", b"\xff", LONG_PIECE.encode()]
    assert tiny.is_end(TokenId(END))


def test_a_file_the_library_refuses_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF and nothing else")
    with pytest.raises(ModelLoadFailed, match=r"bad\.gguf: cannot be loaded: .*failed to read header"):
        loaded_on_cpu(path)


def test_a_closed_model_refuses_and_closes_again(tiny: Model) -> None:
    tiny.close()
    tiny.close()
    for use in (lambda: tiny.tokenize("a"), lambda: tiny.piece(TokenId(1)), lambda: tiny.is_end(TokenId(1))):
        with pytest.raises(ValueError, match="closed"):
            use()
