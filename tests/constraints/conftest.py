"""The tiny model's constraints, made once."""

from collections.abc import Iterator

import pytest

from tests.llama.tiny import write_tiny
from tests.on_cpu import loaded_on_cpu
from worker.constraints.jobs import Constraints
from worker.llama.model import Model, constraints_of


@pytest.fixture(scope="session")
def bytewise(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """The tiny model again, for tests that only ask about its vocabulary."""
    path = write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    with loaded_on_cpu(path) as model:
        yield model


@pytest.fixture(scope="session")
def constraints(bytewise: Model) -> Constraints:
    return constraints_of(bytewise)
