"""The tiny model's constraints, made once."""

from collections.abc import Iterator

import pytest

from tests.llama.tiny import write_tiny
from worker.constraints.constraint import Constraints
from worker.llama.constrained import constraints_of
from worker.llama.devices import devices
from worker.llama.model import Model
from worker.plan.devices import choose_device


@pytest.fixture(scope="session")
def bytewise(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """The tiny model again, for tests that only ask about its vocabulary."""
    cpu = choose_device("cpu", devices())
    path = write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    with Model.load(path, device=cpu, n_gpu_layers=0, on_progress=lambda _: None) as model:
        yield model


@pytest.fixture(scope="session")
def constraints(bytewise: Model) -> Constraints:
    return constraints_of(bytewise)
