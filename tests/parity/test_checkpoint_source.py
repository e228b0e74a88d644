"""A checkpoint is a folder, or is fetched from a hub (a stand-in) as far as it is one. In child processes: the hub's
client reads its environment when it is imported."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub_stand_in import COMMIT, HubStandIn, Refusal
from tests.parity.tiny_llama import write_tiny_llama
from worker.errors import UsageError
from worker.parity.checkpoint_source import checkpoint_folder

REPO = "acme/tiny"
UNWANTED = {"pytorch_model.bin": b"pickle", "modeling_tiny.py": b"raise SystemExit", "README.md": b"# Tiny"}
SCRIPT = (
    "import sys\n"
    "from worker.errors import WorkerError\n"
    "from worker.parity.checkpoint_source import checkpoint_folder\n"
    "try:\n"
    "    sys.stdout.write(str(checkpoint_folder(sys.argv[1])))\n"
    "except WorkerError as error:\n"
    "    sys.exit(f'{type(error).__name__}: {error}')\n"
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama", max_shard_size="10KB")


@pytest.fixture
def hub(checkpoint: Path) -> Iterator[HubStandIn]:
    with HubStandIn() as hub:
        for name, content in {**{path.name: path.read_bytes() for path in checkpoint.iterdir()}, **UNWANTED}.items():
            hub.add(REPO, name, content)
        yield hub


def ask(ref: str, home: Path, endpoint: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "HF_HOME": str(home / "hf"), "HF_ENDPOINT": endpoint}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, ref],
        env=environment | env,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.process
@pytest.mark.parametrize("ref", [REPO, f"hf:{REPO}", f"{REPO}@main", f"{REPO}@{COMMIT}"])
def test_hub_id_is_fetched_without_code_and_pickles(
    ref: str, hub: HubStandIn, checkpoint: Path, tmp_path: Path
) -> None:
    found = Path(ask(ref, tmp_path, hub.url).stdout)
    assert found.is_relative_to(tmp_path / "hf")
    fetched = {path.name: path.read_bytes() for path in found.iterdir()}
    assert fetched == {path.name: path.read_bytes() for path in checkpoint.iterdir()}


@pytest.mark.process
def test_what_was_fetched_serves_without_the_hub(hub: HubStandIn, tmp_path: Path) -> None:
    first = ask(REPO, tmp_path, hub.url).stdout
    n_asked = len(hub.body_requests())
    assert ask(REPO, tmp_path, hub.url).stdout == first
    assert len(hub.body_requests()) == n_asked
    assert ask(REPO, tmp_path, "http://127.0.0.1:1").stdout == first
    assert ask(REPO, tmp_path, hub.url, HF_HUB_OFFLINE="1").stdout == first


@pytest.mark.process
def test_refusals_of_the_hub_are_one_line_with_the_remedy(hub: HubStandIn, tmp_path: Path) -> None:
    hub.refusals["acme/gated"] = Refusal(403, "GatedRepo")
    for ref, complaint in {
        "acme/gated": "acme/gated is gated: accept its terms",
        "acme/none": "acme/none does not exist or is private",
        f"{REPO}@v9": f"{REPO} has no revision v9",
    }.items():
        done = ask(ref, tmp_path, hub.url)
        assert done.returncode == 1
        assert done.stderr.startswith(f"DownloadFailed: {ref} is no folder here, and the hub does not give it: ")
        assert complaint in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.process
def test_hub_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    assert "http://127.0.0.1:1 cannot be asked for acme/tiny" in ask(REPO, tmp_path, "http://127.0.0.1:1").stderr
    assert "HF_HUB_OFFLINE is set" in ask(REPO, tmp_path, "http://127.0.0.1:1", HF_HUB_OFFLINE="1").stderr


@pytest.mark.process
def test_repository_without_a_checkpoint_is_refused(hub: HubStandIn, tmp_path: Path) -> None:
    hub.add("acme/gguf-only", "tiny.gguf", b"GGUF")
    assert (
        "acme/gguf-only is not a checkpoint: it has no config.json" in ask("acme/gguf-only", tmp_path, hub.url).stderr
    )


@pytest.mark.long
def test_folder_is_taken_as_it_is(checkpoint: Path) -> None:
    assert checkpoint_folder(str(checkpoint)) == checkpoint


def test_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a checkpoint: it has no config\.json"):
        checkpoint_folder(str(tmp_path))


@pytest.mark.parametrize("ref", ["tiny", "a/b/c", "../x", "/nowhere/at/all", "org/repo@", "https://hub/org/repo"])
def test_what_is_neither_folder_nor_hub_id_is_refused(
    ref: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"no checkpoint folder and no hub id"):
        checkpoint_folder(ref)
