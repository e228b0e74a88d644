"""The owner's choice of the tests for this machine: `.llorch-test.toml`, and before it LLORCH_TEST_MODEL_PATH and
LLORCH_TEST_BACKEND.

Owns the file's keys, what their absence means, and the words for a mistake. Knows nothing of what the machine has.
`.llorch-test.example.toml` shows every key.
"""

import functools
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

ROOT = Path(__file__).parents[2]
FILE = ".llorch-test.toml"
MODEL_VARIABLE = "LLORCH_TEST_MODEL_PATH"
BACKEND_VARIABLE = "LLORCH_TEST_BACKEND"

Backend = Literal["cpu", "cuda", "metal", "vulkan"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)


class MistakenChoiceError(Exception):
    """One line: the file or variable, the key, and what it may be."""


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every table of the file."""


class BackendTable(_Table, frozen=True, kw_only=True):
    test_backend: Backend = "cpu"
    """The tests' own worker processes compute there."""
    gpu_layers: Annotated[int, msgspec.Meta(ge=1)] = 10
    """The number of layers that a test of partial offload puts on a GPU if the model has more."""


class FeaturesTable(_Table, frozen=True, kw_only=True):
    enabled: tuple[Backend, ...] | None = None
    """Each must be there, no other is tested; None: what this machine has."""


class BuildTable(_Table, frozen=True, kw_only=True):
    """The target for which `make` builds llama.cpp; the Makefile reads it by itself."""

    build_cpu: bool = True
    build_cuda: bool = False
    build_metal: bool = False
    build_vulkan: bool = False

    @property
    def built(self) -> tuple[Backend, ...]:
        return tuple(backend for backend in BACKENDS if getattr(self, f"build_{backend}"))


class ModelTable(_Table, frozen=True, kw_only=True):
    path: str | None = None
    """A GGUF file, relative to the repository's root; None: the default model."""


class Choice(_Table, frozen=True, kw_only=True):
    """The whole file, checked."""

    backend: BackendTable = BackendTable()
    features: FeaturesTable = FeaturesTable()
    build: BuildTable | None = None
    model: ModelTable = ModelTable()

    def may_run(self, backend: Backend) -> bool:
        return self.features.enabled is None or backend in self.features.enabled

    def must_run(self, backend: Backend) -> bool:
        """Asked for by name: to be without it is a failure."""
        return backend in (self.features.enabled or ()) or backend == self.backend.test_backend

    @property
    def model_path(self) -> Path | None:
        """The GGUF that takes the default model's place in the tests that any model can pass."""
        return ROOT / Path(self.model.path).expanduser() if self.model.path else None


@functools.cache
def chosen() -> Choice:
    """This checkout's. Raises: MistakenChoiceError."""
    return read_choice(ROOT / FILE, os.environ)


def read_choice(path: Path, environ: Mapping[str, str]) -> Choice:
    """The file's choice; without a file every default. The variables' model and backend go before the file's.

    Raises: MistakenChoiceError.
    """
    tables = _tables(path)
    choice, where = _checked(tables, path.name), f"{path.name}: model.path"
    if backend := environ.get(BACKEND_VARIABLE):
        chosen_there = tables.get("backend", {}) | {"test_backend": backend}
        choice = _checked(tables | {"backend": chosen_there}, BACKEND_VARIABLE)
    if asked := environ.get(MODEL_VARIABLE):
        absolute = ModelTable(path=str(Path(asked).absolute()))
        choice, where = msgspec.structs.replace(choice, model=absolute), MODEL_VARIABLE
    if choice.model_path is not None and not choice.model_path.is_file():
        raise MistakenChoiceError(f"{where}: {choice.model_path} is not a file; name a GGUF, or leave it out")
    return choice


def _tables(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise MistakenChoiceError(f"{path.name}: not a TOML file: {error}") from None


def _checked(tables: dict[str, Any], name: str) -> Choice:
    try:
        choice = msgspec.convert(tables, Choice)
    except msgspec.ValidationError as error:
        backends = ", ".join(BACKENDS)
        raise MistakenChoiceError(f"{name}: {error}; backends are {backends}, see .llorch-test.example.toml") from None
    for problem in _contradictions(choice):
        raise MistakenChoiceError(f"{name}: {problem}")
    return choice


def _contradictions(choice: Choice) -> list[str]:
    """The mistakes that each key allows, and all together do not."""
    enabled, backend, found = choice.features.enabled, choice.backend.test_backend, []
    if enabled is not None and backend not in enabled:
        found.append(f"backend.test_backend is {backend}, which features.enabled leaves out ({', '.join(enabled)})")
    if choice.build is not None:
        built = choice.build.built
        if "cpu" not in built:
            found.append("build.build_cpu is false, but every build of llama.cpp computes on the CPU too")
        if len(built) > len(("cpu", "a GPU")):
            found.append(f"[build] asks for {', '.join(built)}; one build has one GPU backend")
        missing = [name for name in (*(enabled or ()), backend) if name not in built]
        if missing:
            found.append(f"{missing[0]} is to be tested, but build.build_{missing[0]} is not true")
    return found
