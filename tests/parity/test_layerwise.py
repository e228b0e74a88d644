"""One layer at a time gives the same numbers, and takes the memory of a layer."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from parity.naming import to_gguf_order
from parity.reference.model import Dtype, Reference
from parity.reference.tensors import CheckpointTensors
from tests.llama.tiny import TOKENS as LLAMA_TOKENS
from tests.llama.tiny import TYPES
from tests.parity.small_gguf import gguf_name
from tests.parity.tiny_llama import RMS_NORM_EPS, ROPE_THETA, TOKENS, write_tiny_llama

N_HEADS = 8
"""The number of heads of the large checkpoint."""

pytestmark = pytest.mark.torch

PEAK = """
import sys, threading
from pathlib import Path
from parity.reference.model import Reference

def anonymous_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))

def watch():
    while not done.wait(0.002):
        seen.append(anonymous_bytes())

folder, tiny = Path(sys.argv[1]), Path(sys.argv[2])
Reference.open(tiny, n_threads=1).activations([1, 2, 3])  # what PyTorch takes for itself
before, seen, done = anonymous_bytes(), [], threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
{work}
done.set()
watcher.join()
print(max(seen) - before)
"""
"""Memory that no file backs, sampled while a checkpoint is read and run."""


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_numbers_are_those_of_the_whole_model(dtype: Dtype, is_tied: bool, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny", max_shard_size="10KB", tie_word_embeddings=is_tied)
    whole, layerwise = (
        Reference.open(folder, dtype=dtype, n_threads=1, is_layerwise=is_layerwise) for is_layerwise in (False, True)
    )
    assert np.array_equal(layerwise.logits(TOKENS), whole.logits(TOKENS))
    assert layerwise.greedy([TOKENS], 5) == whole.greedy([TOKENS], 5)
    points = whole.activations(TOKENS)
    assert {
        point for point, values in layerwise.activations(TOKENS).items() if (values != points[point]).any()
    } == set()


READ = """
Reference.open(folder, n_threads=1, is_layerwise=sys.argv[3] == "layerwise").activations([1, 2, 3, 4])
"""

COMPARE = """
from parity.bounds import Bounds
from parity.levels import checkpoints, weights
from parity.reference.tensors import CheckpointTensors
from parity.f32_copy import write_f32_copy

gguf, f32_copy, tokens = Path(sys.argv[3]), Path(sys.argv[3] + ".f32_copy"), [1, 2, 3, 4]
tensors, bounds = CheckpointTensors.open(folder), Bounds.load()
write_f32_copy(gguf, tensors, f32_copy)
reference = Reference.open(folder, n_threads=1, is_layerwise=True)
(continuation,) = reference.greedy([tokens], 3)
rows = reference.logits([*tokens, *continuation])[len(tokens) - 1 : -1]
expected = checkpoints.Expected.of(tokens, reference.activations(tokens), continuation, rows)
levels = [
    weights.run(gguf, tensors, bounds, made_from_this_file=False),
    checkpoints.run(f32_copy, expected, bounds=bounds, n_threads=1),
]
assert [level.verdict for level in levels] == ["pass", "pass"], [level.summary for level in levels]
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("made") / "tiny")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 layers in shards, 330 MB."""
    return write_tiny_llama(
        tmp_path_factory.mktemp("made") / "large",
        max_shard_size="40MB",
        vocab_size=len(LLAMA_TOKENS),
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=24,
        num_attention_heads=N_HEADS,
        num_key_value_heads=N_HEADS,
        head_dim=64,
        initializer_range=0.02,
    )


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


@linux_only
@pytest.mark.process
@pytest.mark.parity
def test_peak_of_a_reference_of_24_layers_is_under_two_fifths_of_the_checkpoint(large: Path, tiny: Path) -> None:
    layerwise, whole = (_peak(READ, large, tiny, how) / size_of(large) for how in ("layerwise", "whole"))
    assert layerwise < 0.4
    assert whole > 1  # so the measure sees what it should


@linux_only
@pytest.mark.process
@pytest.mark.parity
def test_24_layers_are_compared_with_a_peak_under_two_fifths_of_the_checkpoint(
    large: Path, tiny: Path, tmp_path: Path
) -> None:
    """The F32 copy and the verdicts of weights and checkpoints hold a layer at a time, beyond the mapped files."""
    gguf = gguf_of(large, tmp_path / "large.gguf")
    assert _peak(COMPARE, large, tiny, str(gguf)) < 0.4 * size_of(large)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def gguf_of(folder: Path, path: Path) -> Path:
    """The large checkpoint as a converter writes it, with a vocabulary that llama.cpp takes."""
    writer = GGUFWriter(path, "llama")
    writer.add_file_type(0)
    writer.add_context_length(64)
    writer.add_embedding_length(512)
    writer.add_block_count(24)
    writer.add_feed_forward_length(1536)
    writer.add_head_count(N_HEADS)
    writer.add_layer_norm_rms_eps(RMS_NORM_EPS)
    writer.add_rope_freq_base(ROPE_THETA)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(LLAMA_TOKENS)
    writer.add_token_scores([0.0] * len(LLAMA_TOKENS))
    writer.add_token_types(TYPES)
    tensors = CheckpointTensors.open(folder)
    for name in sorted(tensors.names):
        values = tensors.read(name)
        is_rotated = "q_proj" in name or "k_proj" in name
        writer.add_tensor(gguf_name(name), to_gguf_order(values, N_HEADS) if is_rotated else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _peak(work: str, folder: Path, tiny: Path, how: str) -> int:
    script = PEAK.replace("{work}", work.strip())
    command = [sys.executable, "-c", script, str(folder), str(tiny), how]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert found.returncode == 0, found.stderr
    return int(found.stdout.split()[-1])
