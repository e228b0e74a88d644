"""What the parity tests share: the default model de-quantised, its reference, and a GGUF of the reference's weights."""

from pathlib import Path

import pytest

from worker.parity.bounds import Bounds
from worker.parity.f32_copy import write_f32_copy
from worker.parity.reference.checkpoint import dequantise
from worker.parity.reference.model import Reference
from worker.parity.reference.tensors import CheckpointTensors


@pytest.fixture(scope="session")
def checkpoint(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SafeTensors checkpoint with the default model's weights, tokenizer and config."""
    folder = tmp_path_factory.mktemp("reference") / "checkpoint"
    dequantise(default_model, folder)
    return folder


@pytest.fixture(scope="session")
def reference(checkpoint: Path) -> Reference:
    """The checkpoint in float64, on two threads."""
    return Reference.open(checkpoint, n_threads=2)


@pytest.fixture(scope="session")
def f32_copy(default_model: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An F32 GGUF with the reference's weights."""
    path = tmp_path_factory.mktemp("f32_copy") / "f32-copy.gguf"
    write_f32_copy(default_model, CheckpointTensors.open(checkpoint), path)
    return path


@pytest.fixture(scope="session")
def bounds() -> Bounds:
    """The built-in bounds."""
    return Bounds.load()
