"""The choice of the binding: the one in worker/_vendor, which a self-contained wheel has, else the installed one."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import worker


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the worker's package, as an installation without worker/_vendor."""
    package = tmp_path / "worker"
    package.mkdir()
    for path in Path(worker.__file__).parent.iterdir():
        (package / path.name).symlink_to(path)
    return package


def run(package: Path, script: str) -> str:
    """The output of a script that imports this copy."""
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    command = (sys.executable, "-P", "-c", script)
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def installed() -> Path:
    found = importlib.util.find_spec("llama_cpp")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


@pytest.mark.parametrize("is_vendored", [True, False])
def test_the_binding_in_the_wheel_goes_before_the_installed_one(is_vendored: bool, package: Path) -> None:
    vendored = package / "_vendor" / "llama_cpp"
    if is_vendored:
        vendored.parent.mkdir()
        vendored.symlink_to(installed())
    loaded = run(package, "import worker.llama, llama_cpp; print(llama_cpp.__file__)")
    assert Path(loaded).parent == (vendored if is_vendored else installed())


def test_a_broken_binding_in_the_wheel_is_the_wheels_to_mend(package: Path) -> None:
    vendored = package / "_vendor" / "llama_cpp"
    vendored.mkdir(parents=True)
    (vendored / "__init__.py").write_text('raise RuntimeError("libstdc++.so.6: cannot open")\n')
    said = run(
        package,
        "from worker.errors import ModelLoadFailed\n"
        "try:\n    import worker.llama\n"
        "except ModelLoadFailed as error:\n    print(error)",
    )
    assert said == (
        "llama.cpp cannot be loaded (libstdc++.so.6: cannot open): install llorch-worker again, built for this machine"
    )
