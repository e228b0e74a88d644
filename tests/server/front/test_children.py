"""A model that is missing at the start is downloaded by a child process, and the log says how far it is and why not."""

import hashlib
from pathlib import Path

import pytest

from tests.models.downloads.puller import CONTENT, Puller, stocked_hub
from tests.worker_process import Event, WorkerProcess, text_of

pytestmark = pytest.mark.process

FRANCE = "The capital of France is"


def start(models_dir: Path, catalog: str) -> WorkerProcess:
    """A worker for the catalogue's model `tiny`, which is not in the models directory."""
    return WorkerProcess("--model", "tiny", "--models-dir", str(models_dir), "--catalog", catalog, "--port", "0")


def url_source(hub_url: str) -> str:
    return f'{{ kind = "url", url = "{hub_url}/files/tiny.gguf" }}'


def downloading(log: list[Event]) -> list[Event]:
    return [entry for entry in log if entry.get("phase") == "download"]


@pytest.mark.model
def test_a_missing_model_is_downloaded_checked_and_served(default_model: Path, tmp_path: Path) -> None:
    content = default_model.read_bytes()
    with stocked_hub() as hub:
        hub.plain["tiny.gguf"] = content
        puller = Puller(hub.url, tmp_path / "models", tmp_path)
        digest = hashlib.sha256(content).hexdigest()
        with start(puller.models_dir, puller.catalog(sha256=digest, source=url_source(hub.url))) as worker:
            assert " Paris" in text_of(worker.ready().run(prompt=FRANCE, max_tokens=2))
            assert worker.health()["model_ref"] == "tiny"
            worker.terminate()
            assert worker.exit_code() == 0
    first, *progress = downloading(worker.log)
    assert first["event"] == "model_load_start"
    assert {entry["event"] for entry in progress} == {"model_load_progress"}
    assert "100 %" in progress[-1]["detail"]
    assert (puller.models_dir / "tiny.gguf").read_bytes() == content


def test_a_download_with_the_wrong_digest_is_never_served(tmp_path: Path) -> None:
    with stocked_hub() as hub:
        puller = Puller(hub.url, tmp_path / "models", tmp_path)
        with start(puller.models_dir, puller.catalog(sha256="0" * 64, source=url_source(hub.url))) as worker:
            line = worker.failure()
    assert (line["code"], line["model"]) == ("MODEL_DOWNLOAD_FAILED", "tiny")
    assert "sha256" in line["message"]
    assert hashlib.sha256(CONTENT).hexdigest() in line["message"]
    assert not (puller.models_dir / "tiny.gguf").exists()
    assert len([entry for entry in worker.log if entry["event"] == "model_load_start"]) == 1, "no engine was started"


def test_a_download_that_is_no_model_is_refused_before_the_engine_starts(tmp_path: Path) -> None:
    """The digest is right, the file is not a GGUF."""
    with stocked_hub() as hub:
        puller = Puller(hub.url, tmp_path / "models", tmp_path)
        with start(puller.models_dir, puller.catalog(source=url_source(hub.url))) as worker:
            line = worker.failure()
    assert line["code"] == "MODEL_LOAD_FAILED"
    assert "GGUF" in line["message"]
    assert {entry.get("phase") for entry in worker.log if entry["event"] == "model_load_start"} == {"download"}
