"""One layer at a time gives the same numbers, and takes the memory of a layer."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.parity.tiny_llama import TOKENS, write_tiny_llama
from worker.errors import UsageError
from worker.parity.reference.model import Dtype, Reference

pytestmark = pytest.mark.torch

PEAK = """
import sys, threading
from pathlib import Path
from worker.parity.reference.model import Reference

def anonymous_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))

def watch():
    while not done.wait(0.002):
        seen.append(anonymous_bytes())

folder, tiny, is_layerwise = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "True"
Reference.open(tiny, n_threads=1).activations([1, 2, 3])  # what PyTorch takes for itself
before, seen, done = anonymous_bytes(), [], threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
reference = Reference.open(folder, n_threads=1, is_layerwise=is_layerwise)
reference.activations([1, 2, 3, 4])
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


def test_checkpoint_that_lacks_a_tensor_is_refused_before_it_runs(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "tiny", max_shard_size="10KB")
    index = folder / "model.safetensors.index.json"
    map_of = json.loads(index.read_text())
    lost = map_of["weight_map"]["model.layers.2.mlp.down_proj.weight"]
    kept = {name: file for name, file in map_of["weight_map"].items() if file != lost}
    index.write_text(json.dumps({**map_of, "weight_map": kept}))
    with pytest.raises(UsageError, match="the checkpoint lacks model"):
        Reference.open(folder, n_threads=1, is_layerwise=True)


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_peak_of_24_layers_is_under_two_fifths_of_the_checkpoint(tmp_path: Path) -> None:
    tiny = write_tiny_llama(tmp_path / "tiny")
    folder = write_tiny_llama(
        tmp_path / "large",
        max_shard_size="40MB",
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=24,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=64,
        initializer_range=0.02,
    )
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    layerwise, whole = (_peak(folder, tiny, is_layerwise=is_layerwise) / size for is_layerwise in (True, False))
    assert layerwise < 0.4
    assert whole > 1  # so the measure sees what it should


def _peak(folder: Path, tiny: Path, *, is_layerwise: bool) -> int:
    command = [sys.executable, "-c", PEAK, str(folder), str(tiny), str(is_layerwise)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
