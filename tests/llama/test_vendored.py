"""The choice of the binding: the one in worker/_vendor, which a self-contained wheel has, else the installed one."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import worker


@pytest.mark.parametrize("is_vendored", [True, False])
def test_the_binding_in_the_wheel_goes_before_the_installed_one(is_vendored: bool, tmp_path: Path) -> None:
    found = importlib.util.find_spec("llama_cpp")
    assert found is not None
    assert found.origin is not None
    installed = Path(found.origin).parent
    package = tmp_path / "worker"
    package.mkdir()
    for path in Path(worker.__file__).parent.iterdir():
        (package / path.name).symlink_to(path)
    if is_vendored:
        (package / "_vendor").mkdir()
        (package / "_vendor" / "llama_cpp").symlink_to(installed)
    ran = subprocess.run(
        [sys.executable, "-P", "-c", "import worker.llama, llama_cpp; print(llama_cpp.__file__)"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    expected = package / "_vendor" / "llama_cpp" if is_vendored else installed
    assert Path(ran.stdout.strip()).parent == expected
