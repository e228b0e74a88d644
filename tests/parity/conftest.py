"""What the parity tests share: the default model de-quantised, its reference, and a GGUF of the reference's weights."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from worker.parity.bounds import Bounds
from worker.parity.f32_copy import write_f32_copy
from worker.parity.reference.checkpoint import dequantise
from worker.parity.reference.model import Reference
from worker.parity.reference.tensors import CheckpointTensors


def _made_once(path: Path, make: Callable[[Path], object]) -> Path:
    """`path`, alone in its folder, which the first process of the test run that needs it has made: each takes many
    seconds.
    """
    path.parent.mkdir(exist_ok=True)
    with FileLock(f"{path.parent}.lock"):
        if not path.exists():
            make(path)
    return path


def _shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for all processes of a test run."""
    mine = tmp_path_factory.getbasetemp()
    return mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine


@pytest.fixture(scope="session")
def checkpoint(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SafeTensors checkpoint with the default model's weights, tokenizer and config."""
    path = _shared_folder(tmp_path_factory) / "reference" / "checkpoint"
    return _made_once(path, lambda folder: dequantise(default_model, folder))


@pytest.fixture(scope="session")
def reference(checkpoint: Path) -> Reference:
    """The checkpoint in float64, on two threads."""
    return Reference.open(checkpoint, n_threads=1)


@pytest.fixture(scope="session")
def f32_copy(default_model: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An F32 GGUF with the reference's weights."""
    path = _shared_folder(tmp_path_factory) / "f32_copy" / "f32-copy.gguf"
    return _made_once(path, lambda copy: write_f32_copy(default_model, CheckpointTensors.open(checkpoint), copy))


@pytest.fixture(scope="session")
def bounds() -> Bounds:
    """The built-in bounds."""
    return Bounds.load()
