"""The reference: the checkpoint that it reads, float64 throughout, every point, and the windows of its text."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from parity.case import plan_windows, windows_of
from parity.evidence import LONG, SHORT
from parity.naming import Naming
from parity.points import Activations
from parity.reference.checkpoint import dequantise
from parity.reference.model import Reference
from parity.reference.tensors import CheckpointTensors
from tests.gguf_files import TINY_TENSORS, TensorRow, Value, tiny_model, tiny_split
from tests.parity.plain_llama import PlainLlama
from tests.parity.small_gguf import dequantised, stored
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
from worker.models.facts.info import read_info

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


# ── points ───────────────────────────────────────────────────────────────────────────────────────


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


# ── a checkpoint made from a GGUF ──────────────────────────────────────────────────────────────────


@pytest.mark.model
def test_every_weight_is_the_de_quantised_one(checkpoint: Path, default_model: Path) -> None:
    found = stored(default_model)
    tensors = CheckpointTensors.open(checkpoint)
    naming = Naming.of(read_info(default_model))
    names = naming.by_gguf_name(tensors.names)
    assert {names[name] for name in found} == tensors.names
    assert len(found) == len(tensors.names)
    different = [
        name
        for name, tensor in found.items()
        if not np.array_equal(naming.in_gguf_order(name, tensors.read(names[name])), dequantised(tensor))
    ]
    assert different == []


@pytest.mark.model
@pytest.mark.parity
def test_default_model_is_computed_as_its_equations_in_float64(reference: Reference, checkpoint: Path) -> None:
    """All 30 layers; float32 anywhere, as in transformers' own norms, leaves 1e-5."""
    facts = reference.facts
    config = json.loads((checkpoint / "config.json").read_bytes())
    plain = PlainLlama(
        CheckpointTensors.open(checkpoint).read,
        facts.n_layers,
        facts.n_heads,
        facts.n_kv_heads,
        facts.head_dim,
        config["rms_norm_eps"],
        config["rope_parameters"]["rope_theta"],
    )
    tokens = reference.tokenize("A lighthouse keeper writes down the weather of the day.")
    assert np.abs(reference.logits(tokens) - plain.logits(tokens)).max() < 1e-10


@pytest.mark.model
def test_checkpoint_says_where_it_is_from_and_nothing_of_the_machine(checkpoint: Path, default_model: Path) -> None:
    with default_model.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    origin = json.loads((checkpoint / "llorch-parity.json").read_bytes())
    assert origin == {"made_from": default_model.name, "sha256": digest}
    assert "quantization_config" not in json.loads((checkpoint / "config.json").read_bytes())
    texts = [path.read_text() for path in checkpoint.iterdir() if path.suffix != ".safetensors"]
    assert not any(str(folder) in text for text in texts for folder in (default_model.parent, checkpoint.parent))
    assert [path.name for path in checkpoint.parent.iterdir()] == [checkpoint.name]


@pytest.mark.parametrize(
    ("changes", "tensors", "complaint"),
    [
        ({"llama.rope.scaling.type": "linear"}, TINY_TENSORS, "scales RoPE, which is lost"),
        ({}, (*TINY_TENSORS, TensorRow("rope_freqs.weight", (4,), 16)), "scales RoPE, which is lost"),
        (
            {"llama.rope.scaling.type": "none"},
            TINY_TENSORS,
            r"has 320 weights where transformers' llama model",
        ),
    ],
)
def test_gguf_that_would_lose_something_is_refused(
    changes: dict[str, Value | None], tensors: tuple[TensorRow, ...], complaint: str, tmp_path: Path
) -> None:
    gguf = tiny_model(changes, tensors).write(tmp_path / "tiny.gguf")
    with pytest.raises(UsageError, match=complaint):
        dequantise(gguf, tmp_path / "checkpoint")
    assert list(tmp_path.iterdir()) == [gguf]


def test_split_gguf_is_refused(tmp_path: Path) -> None:
    first = tiny_split(tmp_path)[0]
    with pytest.raises(UsageError, match="is one of 3 files"):
        dequantise(first, tmp_path / "checkpoint")


@pytest.mark.parametrize("library", ["torch", "transformers"])
def test_missing_library_is_one_line_with_the_remedy(library: str) -> None:
    script = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from worker.errors import UsageError\n"
        "try:\n"
        "    import parity.reference.model\n"
        "except UsageError as error:\n"
        "    sys.stdout.write(str(error))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"a reference needs {library}: pip install -e '.[parity]' in a checkout"


def test_tensors_are_read_without_pytorch() -> None:
    script = "import sys, parity.reference.tensors; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


# ── the tensors of a checkpoint ────────────────────────────────────────────────────────────────────


def one_tensor(folder: Path, tensor: torch.Tensor, **config: object) -> CheckpointTensors:
    save_file({"model.embed_tokens.weight": tensor}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return CheckpointTensors.open(folder)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_floating_type_is_read_as_pytorch_reads_it(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = one_tensor(tmp_path, tensor).read("model.embed_tokens.weight")
    assert found.dtype == np.float32
    assert np.array_equal(found, tensor.float().numpy())
    found[:] = 0  # a copy: the file stays as it is
    assert CheckpointTensors.open(tmp_path).read("model.embed_tokens.weight").any()


def test_numbers_that_are_not_floating_are_refused(tmp_path: Path) -> None:
    tensors = one_tensor(tmp_path, torch.ones(2, 2, dtype=torch.int8))
    with pytest.raises(UsageError, match=r"embed_tokens\.weight is I8; F64, F32, F16, BF16 can be compared"):
        tensors.read("model.embed_tokens.weight")


@pytest.mark.parametrize("is_tied", [True, False])
def test_output_of_a_tied_model_is_its_embedding(is_tied: bool, tmp_path: Path) -> None:
    tensors = one_tensor(tmp_path, torch.ones(2, 2), tie_word_embeddings=is_tied)
    assert tensors.names == {"model.embed_tokens.weight"}
    if is_tied:
        assert np.array_equal(tensors.read("lm_head.weight"), np.ones((2, 2)))
    else:
        with pytest.raises(KeyError):
            tensors.read("lm_head.weight")


# ── the windows of a text ──────────────────────────────────────────────────────────────────────────


TEXT = "abcdefgh" * LONG
PROMPTS = ("abcdabcdabcdabc", "hhhh", "abcdefgh")


@given(st.lists(st.integers(0, 99)), st.integers(1, 9), st.none() | st.integers(100, 101))
def test_windows_joined_are_the_text_without_its_rest(ids: list[int], length: int, bos: int | None) -> None:
    windows = windows_of(ids, "short", length, bos)
    n_front = 0 if bos is None else 1
    assert all(window.tokens[:n_front] == (bos,) * n_front for window in windows)
    assert all(len(window.tokens) == length + n_front for window in windows)
    assert [token for window in windows for token in window.tokens[n_front:]] == ids[: len(ids) // length * length]


def test_plan_has_the_text_twice_and_the_prompts_once(tiny: Reference) -> None:
    windows = plan_windows(tiny, TEXT, PROMPTS, n_tokens=2 * LONG, n_continued=5)
    of = {kind: [window for window in windows if window.kind == kind] for kind in ("short", "long", "continuation")}
    assert [len(found) for found in of.values()] == [2 * LONG // SHORT, 2, 3]
    for kind in ("short", "long"):
        assert [token for window in of[kind] for token in window.tokens[1:]] == tiny.tokenize(TEXT)[: 2 * LONG]
    assert all(window.tokens[0] == BOS for window in windows)


def test_prompts_are_cut_to_the_shortest_and_continued_by_the_reference(tiny: Reference) -> None:
    windows = [w for w in plan_windows(tiny, TEXT, PROMPTS, n_tokens=SHORT, n_continued=5) if w.kind == "continuation"]
    for window, prompt in zip(windows, PROMPTS, strict=True):
        assert window.n_prompt == 1 + min(map(len, PROMPTS))
        assert list(window.tokens[: window.n_prompt]) == [BOS, *tiny.tokenize(prompt)][: window.n_prompt]
        assert [list(window.tokens[window.n_prompt :])] == tiny.greedy([window.tokens[: window.n_prompt]], 5)


@pytest.mark.parametrize(
    ("text", "n_tokens", "complaint"),
    [
        ("abc", SHORT, "the text has 3 tokens in this model's vocabulary; 64 are needed"),
        ("abc", 3, "3 tokens are too few"),
    ],
)
def test_text_that_is_too_short_is_refused(text: str, n_tokens: int, complaint: str, tiny: Reference) -> None:
    with pytest.raises(UsageError, match=complaint):
        plan_windows(tiny, text, PROMPTS, n_tokens=n_tokens)
