"""The reference: float64 throughout, every point of the network, and nothing left behind. Tiny random checkpoints."""

import json
from pathlib import Path

import numpy as np
import pytest
import transformers

from parity.points import Activations
from parity.reference.model import Reference
from parity.reference.tensors import CheckpointTensors
from tests.parity.made_activations import layer_points
from tests.parity.plain_llama import PlainLlama
from tests.parity.tiny_llama import (
    BOS,
    HEAD_DIM,
    N_HEADS,
    N_KV_HEADS,
    N_LAYERS,
    RMS_NORM_EPS,
    ROPE_THETA,
    TOKENS,
    write_tiny_llama,
)
from worker.errors import UsageError

pytestmark = pytest.mark.torch

LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": ROPE_THETA,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
EXACT = 1e-12
"""The error that float64 leaves in sums of this length. Any float32 leaves more than 1e-8."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Reference:
    return Reference.open(folder, n_threads=1)


@pytest.fixture(scope="module")
def found(tiny: Reference) -> Activations:
    return tiny.activations(TOKENS)


def plain(folder: Path) -> PlainLlama:
    read = CheckpointTensors.open(folder).read
    return PlainLlama(read, N_LAYERS, N_HEADS, N_KV_HEADS, HEAD_DIM, RMS_NORM_EPS, ROPE_THETA)


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────


def test_logits_are_those_of_the_equations_in_float64(tiny: Reference, folder: Path) -> None:
    assert np.abs(tiny.logits(TOKENS) - plain(folder).logits(TOKENS)).max() < EXACT


def test_float32_is_as_transformers_has_it(folder: Path, tiny: Reference) -> None:
    own = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32", attn_implementation="eager")
    expected = own(own.dummy_inputs["input_ids"].new_tensor([TOKENS])).logits[0].detach().numpy()
    single = Reference.open(folder, dtype="float32", n_threads=1)
    assert np.abs(single.logits(TOKENS) - expected).max() < 1e-5
    assert 1e-8 < np.abs(single.logits(TOKENS) - tiny.logits(TOKENS)).max() < 1e-4


@pytest.mark.parametrize("scaling", [LLAMA_3, {"rope_type": "dynamic", "rope_theta": ROPE_THETA, "factor": 2.0}])
def test_scaled_rope_is_transformers_own_to_float32(scaling: dict[str, object], tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "scaled", rope_parameters=scaling, max_position_embeddings=64)
    single, double = (Reference.open(folder, dtype=dtype, n_threads=1) for dtype in ("float32", "float64"))
    assert np.abs(single.logits(TOKENS) - double.logits(TOKENS)).max() < 1e-4


def test_greedy_is_the_repeated_argmax_for_every_prompt_of_a_batch(tiny: Reference) -> None:
    prompts = [TOKENS[:4], TOKENS[4:8], TOKENS[8:]]
    for prompt, continued in zip(prompts, tiny.greedy(prompts, 6), strict=True):
        for number, token in enumerate(continued):
            assert token == tiny.logits([*prompt, *continued[:number]])[-1].argmax()


def test_greedy_refuses_prompts_of_several_lengths(tiny: Reference) -> None:
    with pytest.raises(ValueError, match=r"one length are needed, not of \[2, 3\]"):
        tiny.greedy([[1, 2], [1, 2, 3]], 1)


# ── points ───────────────────────────────────────────────────────────────────────────────────────


def test_every_point_is_there_in_float64(found: Activations) -> None:
    assert sorted(found) == layer_points(N_LAYERS)
    assert {values.dtype for values in found.values()} == {np.dtype(np.float64)}


def test_nothing_of_a_run_stays(tiny: Reference) -> None:
    """A text twice gives the same, and the first answer is not written over."""
    first = tiny.activations(TOKENS)
    kept = {point: values.copy() for point, values in first.items()}
    tiny.activations(TOKENS[::-1])
    tiny.logits(TOKENS[::-1])
    again = tiny.activations(TOKENS)
    assert all(np.array_equal(first[point], kept[point]) for point in kept)
    assert all(np.array_equal(again[point], kept[point]) for point in kept)


def test_layer_by_layer_is_refused_outside_the_llama_family(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "olmo"}))
    with pytest.raises(UsageError, match=r"of the olmo architecture; .* leave the checkpoints level out"):
        Reference.open(folder, n_threads=1).activations(TOKENS)


# ── config and tokenizer ─────────────────────────────────────────────────────────────────────────


def test_bos_is_a_fact_and_no_token_of_a_text(tiny: Reference) -> None:
    assert tiny.facts.bos == BOS
    assert tiny.tokenize("abz</s>h") == [3, 4, 0, 2, 10]
    assert tiny.tokenize("") == []


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda folder: (folder / "config.json").unlink(), "not a checkpoint: it has no config.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "it has no .safetensors file"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "the tokenizer cannot be read"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"{}"), "not a SafeTensors checkpoint"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "new"}'), "model type `new`"),
    ],
)
def test_what_is_no_checkpoint_is_refused_in_one_line(spoil: object, complaint: str, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "spoilt")
    assert callable(spoil)
    spoil(folder)
    with pytest.raises(UsageError, match=complaint) as refused:
        Reference.open(folder, n_threads=1)
    assert "\n" not in str(refused.value)


def test_checkpoint_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    """transformers would make it up."""
    folder = write_tiny_llama(tmp_path / "whole", max_shard_size="10KB")
    index = folder / "model.safetensors.index.json"
    weights = json.loads(index.read_text())
    del weights["weight_map"]["model.layers.1.mlp.up_proj.weight"]
    index.write_text(json.dumps(weights))
    with pytest.raises(UsageError, match=r"lacks model\.layers\.1\.mlp\.up_proj\.weight"):
        Reference.open(folder, n_threads=1)
