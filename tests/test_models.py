"""The catalogue's other models that lie in Python wheels: fetched, served and judged. `make models-test` runs this.

Other architectures than the default model's (Gemma 3, Qwen2), another kind of vocabulary (SentencePiece, 262,144
pieces), layers with a sliding window, K-quants, a trained context of 32,768 tokens, and files out of several wheels.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker_process import WorkerProcess
from worker.models.downloads.catalog import CatalogEntry, WheelSource, load_catalog

pytestmark = [
    *(pytest.mark.models, pytest.mark.model, pytest.mark.process, pytest.mark.torch),
    pytest.mark.timeout(3600),
]

OTHERS = [
    entry
    for entry in load_catalog(None).entries
    if not entry.default and any(isinstance(source, WheelSource) for source in entry.sources)
]
MAX_JUDGED_BYTES = 600 * 10**6
"""The reference computes in float64, which takes thirteen times the bytes of a file with 4 bits a weight."""
JUDGED = [entry for entry in OTHERS if (entry.size_bytes or 0) <= MAX_JUDGED_BYTES]
N_TOKENS = 512
"""One window of the longer kind."""
ASKED = {"The capital of France is": "Paris", "Paris is the capital of": "France"}
"""Each model knows one of these at least: the one for code and the one without a chat template not the same."""


@pytest.fixture(scope="module", params=OTHERS, ids=lambda entry: entry.name)
def entry(request: pytest.FixtureRequest) -> CatalogEntry:
    found: CatalogEntry = request.param
    return found


@pytest.fixture(scope="module")
def path(entry: CatalogEntry) -> Path:
    return pulled(entry)


@pytest.fixture(scope="module", params=JUDGED, ids=lambda entry: entry.name)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of `parity run` against the file's own weights. It takes 10 GB of disk meanwhile."""
    path, folder = pulled(request.param), tmp_path_factory.mktemp("parity")
    text = ("--tokens", str(N_TOKENS))
    checkpoint, _ = command("parity", "reference", "--model", str(path), *text, "--output", str(folder / "reference"))
    judged = ("--reference", checkpoint, "--proof-dir", str(folder / "proof"), "--work-dir", str(folder / "work"))
    command("parity", "run", "--model", str(path), *text, *judged)
    (found,) = (folder / "proof").glob("**/report.json")
    return found


def pulled(entry: CatalogEntry) -> Path:
    (printed,) = command("models", "pull", entry.name)
    return Path(printed)


def command(*arguments: str) -> list[str]:
    """The printed lines. A failure is shown as it was printed."""
    done = subprocess.run([sys.executable, "-m", "worker", *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def test_it_knows_what_a_model_knows(entry: CatalogEntry, path: Path) -> None:
    with WorkerProcess("--model", entry.name, "--port", "0", "--ctx-size", "4096") as worker:
        assert path.is_file()
        worker.ready()
        said = [worker.text(prompt=asked, max_tokens=8, temperature=0) for asked in ASKED]
        assert any(known in text for known, text in zip(ASKED.values(), said, strict=True)), said
        counted = worker.text(prompt="one, two, three, four, five,", max_tokens=12, temperature=0)
        assert "six" in counted
        assert "seven" in counted


def test_every_level_passes_against_the_files_own_weights(report: Path) -> None:
    levels = {level["name"]: level["verdict"] for level in json.loads(report.read_bytes())["levels"]}
    not_run = {"weights", "checkpoints"}
    assert {name for name, verdict in levels.items() if verdict == "pass"} == levels.keys() - not_run


def test_a_model_for_code_fills_a_gap() -> None:
    pulled_name = "qwen2.5-coder-0.5b-instruct"
    with WorkerProcess("--model", pulled_name, "--port", "0", "--ctx-size", "4096") as worker:
        worker.ready()
        before, after = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))\n"
        asked = {"prompt": before, "suffix": after, "temperature": 0, "max_tokens": 5}
        (choice,) = worker.post("/v1/completions", json=asked).json()["choices"]
        assert choice["text"].startswith("a + b")
        asked = {"input_prefix": before, "input_suffix": after, "prompt": "a", "n_predict": 3, "temperature": 0}
        assert worker.post("/infill", json=asked).json()["content"].startswith(" + b")
