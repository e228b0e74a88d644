"""What all tests share: the default model, found where `make test` put it."""

from pathlib import Path

import pytest

from worker.settings import Settings


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The real default model, in the default models directory."""
    return Settings().models_dir / "SmolLM2-135M-Instruct.Q4_1.gguf"
