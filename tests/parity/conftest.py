"""The parity tests share the default model de-quantised, its reference, and a GGUF of the reference's weights."""

from pathlib import Path

import pytest

from parity.bounds import Bounds
from parity.f32_copy import write_f32_copy
from parity.reference.checkpoint import dequantise
from parity.reference.model import Reference
from parity.reference.tensors import CheckpointTensors
from tests.shared_files import made_once, shared_folder


@pytest.fixture(scope="session")
def checkpoint(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SafeTensors checkpoint with the default model's weights, tokenizer and config."""
    path = shared_folder(tmp_path_factory) / "reference" / "checkpoint"
    return made_once(path, lambda folder: dequantise(default_model, folder))


@pytest.fixture(scope="session")
def reference(checkpoint: Path) -> Reference:
    """The checkpoint in float64."""
    return Reference.open(checkpoint, n_threads=1)


@pytest.fixture(scope="session")
def f32_copy(default_model: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An F32 GGUF with the reference's weights."""
    path = shared_folder(tmp_path_factory) / "f32_copy" / "f32-copy.gguf"
    return made_once(path, lambda copy: write_f32_copy(default_model, CheckpointTensors.open(checkpoint), copy))


@pytest.fixture(scope="session")
def bounds() -> Bounds:
    """The built-in bounds."""
    return Bounds.load()
