"""A checkpoint is a folder, or is fetched from a hub (a stand-in) as far as it is one; a model has the one chosen last.

What asks the hub runs in child processes: its client reads its environment when it is imported.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parity.references import (
    CHECKPOINT,
    Chosen,
    Subject,
    checkpoint_folder,
    folder_for,
    found,
    remember,
    write_origin,
)
from tests.gguf_files import tiny_model
from tests.hub_stand_in import COMMIT, HubStandIn, Refusal
from tests.parity.tiny_llama import write_tiny_llama
from worker.errors import UsageError

REPO = "acme/tiny"
UNWANTED = {"pytorch_model.bin": b"pickle", "modeling_tiny.py": b"raise SystemExit", "README.md": b"# Tiny"}
SCRIPT = (
    "import sys\n"
    "from worker.errors import WorkerError\n"
    "from parity.references import checkpoint_folder\n"
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
    return child(["-c", SCRIPT, ref], home, endpoint, **env)


def child(arguments: list[str], home: Path, endpoint: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    environment = kept | {"HOME": str(home), "HF_HOME": str(home / "hf"), "HF_ENDPOINT": endpoint}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment | env,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
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


@pytest.mark.parametrize("ref", ["tiny", "a/b/c", "../x", "/nowhere/at/all", "org/repo@", "https://hub/org/repo"])
def test_what_is_neither_folder_nor_hub_id_is_refused(
    ref: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"neither a checkpoint folder nor a hub id"):
        checkpoint_folder(ref)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A models directory with one model, and a catalogue that names its original checkpoint."""
    model = tiny_model().write(tmp_path / "tiny.gguf")
    sha256 = hashlib.sha256(model.read_bytes()).hexdigest()
    (tmp_path / "models.toml").write_text(
        f"""[[model]]
name = "tiny"
default = true
file = "tiny.gguf"
sha256 = "{sha256}"
license = "Apache-2.0"
reference = "{REPO}"
sources = [{{ kind = "url", url = "http://127.0.0.1:1/tiny.gguf" }}]
"""
    )
    return tmp_path


def make_reference(home: Path, endpoint: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    where = ["--models-dir", str(home), "--catalog", str(home / "models.toml"), "--threads", "1", "--tokens", "512"]
    command = ["-m", "worker", "parity", "reference", *where, *(arguments or ["--model", "tiny"])]
    return child(command, home, endpoint, XDG_CACHE_HOME=str(home / "cache"))


@pytest.mark.torch
@pytest.mark.process
def test_a_name_takes_the_original_checkpoint_that_the_catalogue_names(hub: HubStandIn, home: Path) -> None:
    done = make_reference(home, hub.url)
    assert done.returncode == 0, done.stderr
    folder, logits = map(Path, done.stdout.split())
    assert folder.is_relative_to(home / "hf")
    assert f"the original checkpoint: {REPO}, from the hub or its cache" in done.stderr
    assert found(Subject.of(home / "tiny.gguf", n_threads=1, work=home), logits.parents[1]) == Chosen(folder, REPO)


@pytest.mark.torch
@pytest.mark.process
def test_an_original_in_the_models_directory_is_taken_without_the_hub(checkpoint: Path, home: Path) -> None:
    (home / REPO).parent.mkdir()
    (home / REPO).symlink_to(checkpoint)
    done = make_reference(home, "http://127.0.0.1:1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == str(home / REPO)


@pytest.mark.torch
@pytest.mark.process
def test_where_the_original_cannot_be_had_it_is_said_and_the_gguf_is_de_quantised(hub: HubStandIn, home: Path) -> None:
    """This one lacks most of its tensors, which transformers finds: so far the command gets."""
    hub.refusals[REPO] = Refusal(403, "GatedRepo")
    original, instead, failure = make_reference(home, hub.url).stderr.splitlines()[-3:]
    assert f"{REPO} is gated: accept its terms" in original
    assert original.endswith("the reference is made from the GGUF instead, so what quantisation cost is not measured")
    assert instead == "==> de-quantising tiny.gguf"
    assert "tiny.gguf has 320 weights" in failure


@pytest.mark.torch
@pytest.mark.process
def test_a_path_is_compared_with_its_own_weights_whatever_the_catalogue_says(hub: HubStandIn, home: Path) -> None:
    done = make_reference(home, hub.url, "--model", str(home / "tiny.gguf"))
    assert "==> de-quantising tiny.gguf" in done.stderr
    assert hub.asked == []


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    return Subject.of(tiny_model().write(tmp_path / "tiny.gguf"), n_threads=1, work=tmp_path)


def test_the_checkpoint_that_was_chosen_last_is_found(subject: Subject, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="make one with `llorch-worker parity reference`"):
        found(subject, tmp_path)
    own = folder_for(subject, tmp_path) / CHECKPOINT
    own.mkdir(parents=True)
    write_origin(subject.info.path, own)
    assert found(subject, tmp_path) == Chosen(own, CHECKPOINT)
    other = tmp_path / "other"
    other.mkdir()
    remember(Chosen(other, "acme/other"), own.parent)
    assert found(subject, tmp_path) == Chosen(other, "acme/other")
    remember(Chosen(own, CHECKPOINT), own.parent)
    assert found(subject, tmp_path) == Chosen(own, CHECKPOINT)
