"""The model that all tests run on is where `make test` put it, or where the owner of the machine says."""

import signal
from pathlib import Path

import hypothesis
import pytest

from tests.backends.choice import FILE, MODEL_VARIABLE, MistakenChoiceError, chosen
from tests.default_model import default_file, default_path
from tests.shared_files import made_once, shared_folder

hypothesis.settings.register_profile("llorch", derandomize=True, deadline=None)
hypothesis.settings.load_profile("llorch")
"""The same examples in every run, and no limit of time: other programs use the machine too."""


def pytest_configure() -> None:
    """A mistake in `.llorch-test.toml` ends the run before the first test."""
    # A shell that starts a command in the background lets it ignore Ctrl-C, and so would all that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        chosen()
    except MistakenChoiceError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_report_header() -> str:
    choice = chosen()
    enabled = ", ".join(choice.features.enabled or ("all there are",))
    model = choice.model_path or "the default one"
    return f"llorch-worker: workers on {choice.backend.test_backend}; backends: {enabled}; model: {model}"


@pytest.fixture(autouse=True)
def one_order(request: pytest.FixtureRequest) -> None:
    """Skip what this processor does not promise: `/health` says there that answers may differ among others."""
    if request.node.get_closest_marker("one_order") is not None:
        from worker.llama.invariance import has_own_products  # noqa: PLC0415 - this loads llama.cpp

        if not has_own_products():
            pytest.skip("on this processor the sums of products depend on the rows beside")


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The model of the tests that any model can pass: LLORCH_TEST_MODEL_PATH, else `.llorch-test.toml`'s, else the
    default one."""
    return chosen().model_path or default_file()


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's file, for tests that know its digest, its tokens or its numbers."""
    asked = chosen().model_path
    if asked is not None and asked.resolve() != default_path().resolve():
        pytest.skip(f"tied to the default model, and {MODEL_VARIABLE} or {FILE} names {asked.name}")
    return default_file()


@pytest.fixture(scope="session")
def shallow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model's vocabulary and template over two of its layers, for tests that no text matters to."""
    return _shallow(tmp_path_factory)


@pytest.fixture(scope="session")
def any_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of the tests that any model can pass and no text matters to: the chosen one, else the shallow one."""
    return chosen().model_path or _shallow(tmp_path_factory)


def _shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.shallow_model import write_shallow  # noqa: PLC0415 - the gguf package, slow to import

    path = shared_folder(tmp_path_factory) / "shallow" / "shallow.gguf"
    return made_once(path, lambda target: write_shallow(default_file(), target))
