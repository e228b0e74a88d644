"""A checkpoint made from a GGUF has its weights, its tokenizer and nothing of the machine; or is refused."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parity.naming import Naming
from parity.reference.checkpoint import dequantise
from parity.reference.model import Reference
from parity.reference.tensors import CheckpointTensors
from tests.gguf_files import TINY_TENSORS, TensorRow, Value, tiny_model, tiny_split
from tests.parity.plain_llama import PlainLlama
from tests.parity.small_gguf import dequantised, stored
from worker.errors import UsageError
from worker.models.facts.info import read_info

pytestmark = pytest.mark.torch


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
