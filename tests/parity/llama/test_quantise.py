"""The library's quantiser: what it writes loads, and what it cannot write leaves nothing behind."""

from pathlib import Path

import pytest

from parity.llama.quantise import FILE_TYPES, quantise
from tests.llama.tiny import write_tiny
from tests.on_cpu import loaded_on_cpu
from worker.errors import ModelLoadFailed, UsageError
from worker.models.facts.info import read_info


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny.gguf", weight=0.5)


@pytest.mark.parametrize("file_type", FILE_TYPES)
def test_every_file_type_can_be_written_and_loaded(source: Path, tmp_path: Path, file_type: str) -> None:
    target = tmp_path / "other.gguf"
    quantise(source, target, file_type, n_threads=1)
    assert read_info(target).quant_kind == file_type
    with loaded_on_cpu(target) as model:
        assert model.n_vocab == read_info(source).vocab_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.gguf", "tiny.gguf"]


def test_an_existing_target_is_replaced(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "other.gguf"
    target.write_text("something else")
    quantise(source, target, "F32", n_threads=1)
    assert target.read_bytes().startswith(b"GGUF")


def test_an_unknown_file_type_is_refused_with_those_there_are(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="file type 'Q9' is not one of F32, F16"):
        quantise(source, tmp_path / "other.gguf", "Q9", n_threads=1)


def test_a_file_is_not_quantised_onto_itself(source: Path) -> None:
    """The library maps the source while it writes."""
    before = source.read_bytes()
    with pytest.raises(UsageError, match="onto itself"):
        quantise(source, source.parent / "." / source.name, "F16", n_threads=1)
    assert source.read_bytes() == before


def test_what_is_no_gguf_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    source, target = tmp_path / "model.gguf", tmp_path / "other.gguf"
    source.write_bytes(b"no model")
    with pytest.raises(ModelLoadFailed, match=r"model\.gguf: cannot be written as F16: .*expected 'GGUF'"):
        quantise(source, target, "F16", n_threads=1)
    assert list(tmp_path.iterdir()) == [source]
