"""Models with random weights: the shapes are real ones, the bytes are what ggml takes them for."""

from math import prod
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from tools.bench.prompts import Prompts, common_words
from tools.made_model import BLOCK_BYTES, Q4_K, SHAPES, made_model
from worker.llama.devices import choose_device, devices
from worker.llama.model import Model
from worker.model.info import read_info

TINY = SHAPES["tiny"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_model(tmp_path_factory.mktemp("made"), TINY)


def test_llama_2_7b_has_as_many_weights_as_the_real_one() -> None:
    """6,738,415,616: the published checkpoint's."""
    tensors = SHAPES["llama-2-7b"].tensors()
    assert sum(prod(tensor.dims) for tensor in tensors) == 6_738_415_616
    assert sum(tensor.n_bytes for tensor in tensors if tensor.type_id == Q4_K) == 6_738_149_376 * 4.5 / 8


def test_the_file_is_what_its_header_says(tiny: Path) -> None:
    info = read_info(tiny)
    assert (info.architecture, info.quant_kind, info.vocab_size) == ("llama", "Q4_K", 32_000)
    assert (info.block_count, info.embedding_length) == (TINY.n_layers, TINY.n_embd)


def test_weights_lie_about_zero_and_keep_sizes_as_they_are(tiny: Path) -> None:
    """Of a product with n inputs, each weight has the variance 1/n."""
    output = TINY.tensors()[-1]
    n_bytes = output.n_bytes // BLOCK_BYTES * BLOCK_BYTES
    data = np.fromfile(tiny, np.uint8)[-n_bytes:].reshape(-1, BLOCK_BYTES)
    weights = dequantize(data, GGMLQuantizationType.Q4_K)
    assert abs(float(weights.mean())) < 1e-3 / TINY.n_embd**0.5
    assert float(weights.std()) == pytest.approx(1 / TINY.n_embd**0.5, rel=0.01)


def test_a_whole_file_is_not_made_again_and_a_broken_one_is(tiny: Path) -> None:
    before = tiny.stat().st_mtime_ns
    assert made_model(tiny.parent, TINY).stat().st_mtime_ns == before
    whole = tiny.read_bytes()
    tiny.write_bytes(whole[:-1])
    assert made_model(tiny.parent, TINY).read_bytes() == whole
    assert [path.name for path in tiny.parent.iterdir()] == [tiny.name]


def test_every_word_of_the_prompts_is_one_token(tiny: Path) -> None:
    """So that a prompt has as many tokens as a real vocabulary would make of it."""
    with Model.load(tiny, device=choose_device("cpu", devices()), n_gpu_layers=0, on_progress=lambda _: None) as model:
        assert [len(model.tokenize(word)) for word in common_words()] == [2] * len(common_words())
        assert len(model.tokenize(Prompts(1).of(63))) == 1 + 63 + 21
