"""scripts/download_model.sh goes through the command line: same result, clear words where it cannot."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub_stand_in import HubStandIn
from tests.models.downloads.puller import CONTENT, REFERENCE, stocked_hub
from tests.scripts import SCRIPTS, program

pytestmark = pytest.mark.process
SCRIPT = SCRIPTS / "download_model.sh"


@pytest.fixture
def hub() -> Iterator[HubStandIn]:
    with stocked_hub() as hub:
        yield hub


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A copy in a tree without a .venv."""
    folder = tmp_path / "tree with space" / "scripts"
    folder.mkdir(parents=True)
    return Path(shutil.copy(SCRIPT, folder))


def run(script: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(script), *arguments], env=env, capture_output=True, text=True, timeout=60, check=False)


def worker_on_path(folder: Path) -> Path:
    """An `llorch-worker` as an installation would put it; returns its folder."""
    folder.mkdir(parents=True)
    program(folder / "llorch-worker", f'exec "{sys.executable}" -m worker "$@"')
    return folder


@pytest.mark.parametrize("is_in_venv", [True, False], ids=["beside it", "on PATH"])
def test_named_model_arrives_in_the_named_folder(
    is_in_venv: bool, hub: HubStandIn, script: Path, tmp_path: Path
) -> None:
    folder = worker_on_path(script.parents[1] / ".venv" / "bin" if is_in_venv else tmp_path / "bin")
    path = os.environ["PATH"] if is_in_venv else f"{folder}:{os.environ['PATH']}"
    target = tmp_path / "my models"
    env = {"PATH": path, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HOME": str(tmp_path)}
    result = run(script, REFERENCE, str(target), **env)
    assert result.returncode == 0, result.stderr
    file = Path(result.stdout.rstrip("\n"))
    assert file.is_relative_to(target)
    assert file.read_bytes() == CONTENT


def test_without_a_worker_it_says_what_to_do(script: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("dirname", "cat"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    result = run(Path(str(shutil.which("sh"))), str(script), "tiny", PATH=str(tools))
    assert (result.returncode, result.stdout) == (1, "")
    assert "make run" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["a", "b", "c"], 2), (["--wrong"], 2), (["--help"], 0)])
def test_wrong_use_is_usage_and_exit_2_and_help_exit_0(arguments: list[str], code: int, script: Path) -> None:
    result = run(script, *arguments, PATH=os.environ["PATH"])
    assert result.returncode == code
    assert "usage:" in (result.stderr if code else result.stdout)
    assert not (code and result.stdout)
