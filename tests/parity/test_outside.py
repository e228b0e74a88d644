"""`parity run --url`: a worker that serves the model passes, and one that serves something else fails where it should.

The reference of the default model is the committed one. What a proxy lies about is seen on a model of two layers, whose
reference is made from llama.cpp's own rows: there the server is right by definition until something lies.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from parity import corpus
from parity.bounds import Bounds
from parity.bundle import verify
from parity.evidence import FullLogits, Window
from parity.levels.serving import SEEDS
from parity.llama.scoring import Scorer
from parity.logits_file import LogitsFile, write_logits_file
from parity.outside import CONVERSATIONS, Outside
from parity.references import Subject
from parity.report import Level, Report, from_json
from parity.servers import opened
from parity.setups import as_served
from parity.setups import opened as opened_file
from tests.loopback import LoopbackServer, QuietHandler
from tests.parity.golden_logits import GOLDEN
from tests.parity.made_logits import PROVENANCE, made_reference
from tests.parity.relay import Event, Relay
from tests.worker_process import WorkerProcess
from worker.cli import run
from worker.errors import UsageError, WorkerError
from worker.server.front.certificate import read_certificate

pytestmark = [pytest.mark.model, pytest.mark.process]

TEXT = "The river rises in the hills 🦊, and in autumn the boats that carry apples come down to the harbour. " * 4


@contextmanager
def worker_on(model: Path, *flags: str, token: str | None = None) -> Iterator[WorkerProcess]:
    """Ready, with room for all that the serving level asks at once."""
    environment = {"LLORCH_API_TOKEN": token} if token else {}
    where = ("--model", str(model), "--host", "127.0.0.1", "--port", "0", "--device", "cpu")
    sizes = ("--ctx-size", "2048", "--parallel", "9")
    with WorkerProcess(*where, *sizes, *flags, environment=environment) as worker:
        yield worker.ready()


def judged(url: str, reference: Path, proofs: Path, *arguments: str) -> tuple[int, dict[str, Level], Path]:
    """The command's exit code, the levels of its report, and its bundle."""
    where = ("--proof-dir", str(proofs), "--run-id", "outside")
    code = run(["parity", "run", "--url", url, "--reference", str(reference), *where, *arguments])
    folder = proofs / "parity" / "outside"
    return code, {level.name: level for level in report_in(folder).levels}, folder


def report_in(folder: Path) -> Report:
    return from_json((folder / "report.json").read_bytes())


def levels(*names: str) -> list[str]:
    return [argument for name in names for argument in ("--level", name)]


# ── the default model ────────────────────────────────────────────────────────────────────────────


def test_a_worker_on_the_model_passes_and_its_report_is_no_certificate(
    default_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with worker_on(default_model) as worker:
        code, found, folder = judged(worker.url, GOLDEN, tmp_path, *levels("logits"))
    assert (code, found["logits"].verdict) == (0, "pass"), capsys.readouterr().err
    assert found["logits"].tables[0].rows[0] == ("positions", "512 in 1 windows")
    report = report_in(folder)
    assert report.model.quantisation == "Q4_1"
    assert report.parameters["the reference's weights"] == "taken for those of the served file"
    assert verify(folder) == []
    with pytest.raises(WorkerError, match="sha256"):
        read_certificate(folder)


@pytest.mark.parity
@pytest.mark.timeout(1200)
def test_a_whole_run_passes_but_for_what_no_server_reports(default_model: Path, tmp_path: Path) -> None:
    with worker_on(default_model) as worker:
        code, found, folder = judged(worker.url, GOLDEN, tmp_path, "--model", str(default_model))
    assert code == 0
    assert {name: level.verdict for name, level in found.items()} == {
        "tokenizer": "pass",
        "weights": "not run",
        "checkpoints": "not run",
        "logits": "pass",
        "generation": "pass",
        "serving": "pass",
        "sampling": "not run",
    }
    assert verify(folder) == []
    assert (folder / "seeds.ndjson").read_text().count('"level":"serving"') == len(SEEDS)


def test_a_worker_that_computes_otherwise_fails_at_the_logits(
    default_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its keys are coarser."""
    with worker_on(default_model, "--cache-type-k", "q4_0") as worker:
        code, found, _ = judged(worker.url, GOLDEN, tmp_path, *levels("logits"))
    assert (code, found["logits"].verdict) == (1, "fail")
    assert capsys.readouterr().err.splitlines()[-1].startswith("llorch-worker: error: logits: the served file: ")


# ── two layers of it ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def shallow_logits(shallow_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reference logits as llama.cpp computes them from this very file."""
    folder = tmp_path_factory.mktemp("shallow-logits")
    with opened_file(shallow_model) as model, Scorer(model, as_served(), n_ctx=128, n_threads=1) as scorer:
        text, prompt = model.tokenize(TEXT)[:64], model.tokenize("Once upon a time")
        continuation = Window("continuation", (*prompt, *scorer.greedy(prompt, 12)), len(prompt))
        full = FullLogits.make(folder, [Window("short", tuple(text)), continuation], rows_of(scorer))
        made = replace(
            PROVENANCE,
            made_from_sha256=Subject.of(shallow_model, n_threads=1, work=folder).sha256,
            text_digest=corpus.digest(),
            n_vocab=model.n_vocab,
        )
    path = folder / "logits.safetensors"
    write_logits_file(path, full, LogitsFile.open(GOLDEN).hard_ids, made)
    return path


def rows_of(scorer: Scorer) -> Callable[[Window], NDArray[np.float32]]:
    return lambda window: scorer.logits(window.tokens)


@pytest.fixture(scope="module")
def shallow_worker(shallow_model: Path) -> Iterator[WorkerProcess]:
    with worker_on(shallow_model) as worker:
        yield worker


@dataclass(frozen=True)
class Shallow:
    """The subject of all judgements below."""

    model: Path
    logits: Path
    bounds: Bounds

    def judge(self, url: str, *names: str) -> dict[str, Level]:
        """The named levels of the server at `url`, which is said to serve the file; one prompt is asked with seeds."""
        subject = Subject.of(self.model, n_threads=1, work=self.logits.parent)
        prompts = ("Once upon a time",)
        with opened(url) as server:
            outside = Outside.of(server, self.logits, subject, self.bounds, n_tokens=512, prompts=prompts)
            return {level.name: level for level in outside.levels(names, say=lambda _: None) if level.name in names}


@pytest.fixture
def shallow(shallow_model: Path, shallow_logits: Path, bounds: Bounds) -> Shallow:
    return Shallow(shallow_model, shallow_logits, bounds)


def broken(level: Level) -> list[str]:
    return [check.name for check in level.checks if not check.holds]


def test_every_level_that_can_be_seen_passes_on_what_is_served(shallow: Shallow, shallow_worker: WorkerProcess) -> None:
    found = shallow.judge(shallow_worker.url, "tokenizer", "logits", "generation", "serving")
    assert {name: (level.verdict, broken(level)) for name, level in found.items()} == {
        name: ("pass", []) for name in ("tokenizer", "logits", "generation", "serving")
    }
    assert [check.name for check in found["tokenizer"].checks][-1].startswith(f"of {len(CONVERSATIONS)} conversations")


def test_another_chat_template_fails_at_the_tokenizer_and_both_prompts_are_shown(
    shallow: Shallow, tmp_path: Path
) -> None:
    template = tmp_path / "other.jinja"
    template.write_text("{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}")
    with worker_on(shallow.model, "--chat-template", str(template)) as worker:
        level = shallow.judge(worker.url, "tokenizer")["tokenizer"]
    (name,) = broken(level)
    assert name.startswith("of 3 conversations, those that become another prompt")
    assert "'user: Which river flows through Cairo?" in level.summary
    assert "<|im_start|>user" in level.summary


def test_a_proxy_that_answers_another_token_is_caught_where_it_does(
    shallow: Shallow, shallow_worker: WorkerProcess
) -> None:
    """The sixth token of each continuation is another."""

    def other(path: str, body: Event) -> Event:
        tokens: list[str] = body["choices"][0]["logprobs"]["tokens"] if path == "/v1/completions" else []
        if len(tokens) > 5:
            tokens[5] = "token_id:7"
        return body

    with Relay(shallow_worker.url, reply=other) as relay:
        found = shallow.judge(relay.url, "logits", "generation")
    assert {name: level.verdict for name, level in found.items()} == {"logits": "pass", "generation": "fail"}
    assert "(prompt 1, token 5)" in found["generation"].summary


def completion(reported: dict[str, float]) -> Event:
    return {"choices": [{"logprobs": {"tokens": list(reported), "top_logprobs": [reported]}}]}


@pytest.mark.parametrize(
    ("level", "answer", "says"),
    [
        ("tokenizer", {"error": "no"}, "Object missing required field `tokens`"),
        ("logits", completion({"token_id:1": -1.0}), "returned log-probabilities of 1 rows for a prompt of 64 tokens"),
        ("generation", completion({}), "length >= 1"),
    ],
)
def test_nonsense_for_an_answer_fails_the_level_with_one_line(
    shallow: Shallow, shallow_worker: WorkerProcess, level: str, answer: Event, says: str
) -> None:
    routes = ("/tokenize", "/v1/completions")
    with Relay(shallow_worker.url, reply=lambda path, body: answer if path in routes else body) as relay:
        found = shallow.judge(relay.url, level)[level]
    assert (found.verdict, found.checks) == ("fail", ())
    assert found.summary.startswith("the server did not answer as it should: ")
    assert says in found.summary


# ── who is asked ─────────────────────────────────────────────────────────────────────────────────


def test_a_worker_with_a_token_is_judged_with_it_and_refuses_without(
    shallow: Shallow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model's file is missing, so the prompts of conversations are not judged."""
    with worker_on(shallow.model, token="of-the-worker") as worker:
        arguments = ["parity", "run", "--url", worker.url, "--reference", str(shallow.logits)]
        assert run([*arguments, *levels("logits")]) == 1
        refused = capsys.readouterr()
        code, found, folder = judged(
            worker.url, shallow.logits, tmp_path, "--token", "of-the-worker", *levels("tokenizer", "generation")
        )
    assert "/v1/models returned 401 (give its token with --token or LLORCH_API_TOKEN)" in refused.err
    assert (len(refused.err.splitlines()), refused.out) == (1, "")
    assert (code, found["tokenizer"].verdict, found["generation"].verdict) == (0, "pass", "pass")
    assert "29 texts that are no UTF-8" in found["tokenizer"].summary
    assert "--model names no file with a template" in found["tokenizer"].summary
    assert all(b"of-the-worker" not in path.read_bytes() for path in folder.iterdir())


class Stranger(QuietHandler):
    """A server that has none of the routes."""

    def do_GET(self) -> None:
        self.send_error(404)


@pytest.fixture
def stranger() -> Iterator[str]:
    with LoopbackServer(Stranger) as server:
        yield server.url


def test_a_server_of_another_kind_is_one_line(stranger: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["parity", "run", "--url", stranger, "--reference", str(GOLDEN)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "is not a llorch-worker" in line


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 1, "the server at http://127.0.0.1:1 cannot be judged"),
        (("--url", "nonsense"), 1, "the server at nonsense cannot be judged"),
        (("--url", "http://worker:port"), 1, "http://worker:port is not a URL"),
        (("--reference", "org/model"), 2, "org/model is not a file here"),
        (("--token", " "), 2, "the API token is empty"),
        (("--run-id", "../x"), 2, "run id"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: tuple[str, ...], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last of two equal flags counts."""
    assert run(["parity", "run", "--url", "http://127.0.0.1:1", "--reference", str(GOLDEN), *arguments]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_server_of_another_vocabulary_is_refused(
    shallow_worker: WorkerProcess, shallow_logits: Path, tmp_path: Path, bounds: Bounds
) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    path = tmp_path / "other.safetensors"
    full = made_reference(folder, ["short"])
    write_logits_file(path, full, (), replace(PROVENANCE, text_digest=corpus.digest()))
    with opened(shallow_worker.url) as server, pytest.raises(UsageError, match="a vocabulary of 600 tokens"):
        Outside.of(server, path, None, bounds, n_tokens=512)
