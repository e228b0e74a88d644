"""The bundles that determinism and haiku tests leave: complete, honest about a failure, silent about the machine."""

import json
from pathlib import Path

import pytest

from tests import proof
from tests.gguf_files import tiny_model
from tests.proof import Scene
from tests.worker_process import Event

REQUESTS: list[Event] = [{"prompt": "One", "seed": 1}, {"prompt": "Two", "seed": 1}, {"prompt": "Three", "seed": 2}]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    model = tiny_model().write(tmp_path / "tiny.gguf")
    health = {"status": "healthy", "model_ref": str(model), "uptime_seconds": 3, "vram_bytes": 0}
    log = [{"event": "model_load_start", "path": str(model)}, {"event": "ready", "device": "A CPU"}]
    return Scene(model, health, {"worker_kv_cells_used": 0.0}, log)


def streams(*texts: str) -> list[list[Event]]:
    return [[{"type": "started"}, {"type": "token", "t": text}, {"type": "end"}] for text in texts]


@pytest.mark.parametrize(("beside", "verdict"), [(["a", "b", "c"], "pass"), (["a", "b\nx", "c"], "fail")])
def test_a_determinism_bundle_has_every_pair_and_what_differs(
    tmp_path: Path, scene: Scene, beside: list[str], verdict: str
) -> None:
    folder = proof.keep(proof.determinism(scene, {"flags": []}, REQUESTS, ["a", "b", "c"], beside), tmp_path)
    pairs = [json.loads((folder / f"pairs/{n}.json").read_text()) for n in range(3)]
    assert [pair["beside"] for pair in pairs] == beside
    assert all(pair["is_same"] == (not (folder / f"diffs/{n}.diff").read_text()) for n, pair in enumerate(pairs))
    assert json.loads((folder / "metadata.json").read_text())["verdict"] == verdict
    assert json.loads((folder / "run_config.json").read_text())["requests"] == REQUESTS


@pytest.mark.parametrize(
    ("texts", "verdict"), [(("a", "a", "b"), "PASS"), (("a", "b", "c"), "FAIL"), (("a", "a", "a"), "FAIL")]
)
def test_a_haiku_bundle_has_stream_metrics_log_and_report(
    tmp_path: Path, scene: Scene, texts: tuple[str, ...], verdict: str
) -> None:
    folder = proof.keep(proof.haiku(scene, REQUESTS, streams(*texts)), tmp_path)
    assert (folder / "test_report.md").read_text().splitlines()[2] == f"# {verdict}"
    assert len((folder / "sse_transcript.ndjson").read_text().splitlines()) == 1 + 9
    assert '"path":"tiny.gguf"' in (folder / "run_log_redacted.md").read_text()
    assert json.loads((folder / "gpu_env.json").read_text())["device"] == "A CPU"
    assert json.loads((folder / "metrics_snapshot.json").read_text())["samples"] == scene.metrics
