"""Models with random weights: the shapes are real ones, the bytes are what ggml takes them for."""

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from parity.llama.scoring import Scorer, Setup
from tests.on_cpu import loaded_on_cpu
from tools.bench.prompts import Prompts, common_words
from tools.made_model import BLOCKS, Q4_0, Q4_1, Q4_K, Q8_0, SHAPES, made_model
from worker.models.facts.info import read_info

TINY = SHAPES["tiny"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_model(tmp_path_factory.mktemp("made"), TINY)


@pytest.mark.parametrize(
    ("name", "n_weights"),
    [
        ("smollm2-135m", 134_515_008),
        ("tinyllama-1.1b", 1_100_048_384),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-2-7b", 6_738_415_616),
        ("mistral-7b", 7_241_732_096),
    ],
)
def test_a_shape_has_as_many_weights_as_the_published_checkpoint(name: str, n_weights: int) -> None:
    tensors = SHAPES[name].tensors()
    assert sum(prod(tensor.dims) for tensor in tensors) == n_weights
    matrices = [tensor for tensor in tensors if tensor.type_id == SHAPES[name].type_id]
    bits = {Q4_K: 4.5, Q4_1: 5}[SHAPES[name].type_id]
    assert sum(tensor.n_bytes for tensor in matrices) == sum(prod(tensor.dims) for tensor in matrices) * bits / 8


def test_the_file_is_what_its_header_says(tiny: Path) -> None:
    info = read_info(tiny)
    assert (info.architecture, info.quant_kind, info.vocab_size) == ("llama", "Q4_K", 32_000)
    assert (info.block_count, info.embedding_length) == (TINY.n_layers, TINY.n_embd)


@pytest.mark.parametrize("type_id", [Q4_K, Q4_0, Q4_1, Q8_0])
def test_weights_lie_about_zero_and_keep_sizes_as_they_are(type_id: int, tmp_path: Path) -> None:
    """Each weight of a product with n inputs has the variance 1/n."""
    shape = replace(TINY, type_id=type_id)
    (_, block_bytes), output = BLOCKS[type_id], shape.tensors()[-1]
    data = np.fromfile(made_model(tmp_path, shape), np.uint8)[-output.n_bytes :].reshape(-1, block_bytes)
    weights = dequantize(data, GGMLQuantizationType(type_id))
    assert abs(float(weights.mean())) < 1e-3 / TINY.n_embd**0.5
    assert float(weights.std()) == pytest.approx(1 / TINY.n_embd**0.5, rel=0.01)


def test_a_whole_file_is_not_made_again_and_a_broken_one_and_another_seed_is(tiny: Path, tmp_path: Path) -> None:
    before = tiny.stat().st_mtime_ns
    assert made_model(tiny.parent, TINY).stat().st_mtime_ns == before
    whole = tiny.read_bytes()
    tiny.write_bytes(whole[:-1])
    assert made_model(tiny.parent, TINY).read_bytes() == whole
    assert [path.name for path in tiny.parent.iterdir()] == [tiny.name]
    assert made_model(tmp_path, TINY, seed=2).read_bytes() != whole


def test_every_word_of_the_prompts_is_one_token_and_logits_differ_between_tokens(tiny: Path) -> None:
    """A prompt has as many tokens as a real vocabulary would make of it."""
    with loaded_on_cpu(tiny) as model:
        assert [len(model.tokenize(word)) for word in common_words()] == [2] * len(common_words())
        assert len(model.tokenize(Prompts(1).of(63))) == 1 + 63 + 21
        rows = Scorer(model, Setup(), n_ctx=256, n_threads=1).logits(model.tokenize(Prompts(1).of(12)))
        assert np.isfinite(rows).all()
        assert (rows.std(axis=1) > 0.1).all()
