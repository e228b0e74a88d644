"""`--parity-report`: what a report certifies, whether it covers what runs, and what `--require-parity` refuses."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from parity.bundle import proof_of, write
from parity.report import LEVELS, Report, not_run, to_json
from parity.setups import served
from tests.gguf_files import tiny_model, tiny_split
from tests.loops import on_a_loop
from tests.parity.reports import BROKEN, SHA256, level, levels, report
from tests.server.front.rehearsal import FACTS, Stage
from tests.wire.test_numerics import ON_A_CPU, OTHERS, other
from tests.worker_process import WorkerProcess, eventually
from worker.config.engine import configure
from worker.config.settings import Settings
from worker.errors import CertificateRefused
from worker.host import sha256_of
from worker.models.facts.info import read_info
from worker.models.loading.load import placed
from worker.observe.metrics import Metrics
from worker.server.front.admission import Phase
from worker.server.front.certificate import Examined, read_certificate
from worker.server.front.state import Front
from worker.wire.load import Loaded, Numerics


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_model().write(tmp_path / "tiny.gguf")


def saved(folder: Path, made: Report) -> Path:
    path = folder / "report.json"
    path.write_bytes(to_json(made))
    return path


def test_a_certificate_says_what_the_report_says_also_in_a_bundle_s_folder(tmp_path: Path) -> None:
    made = report()
    found = read_certificate(saved(tmp_path, made))
    assert (found.model.sha256, found.model.file, found.verdict) == (SHA256, "tiny.gguf", "pass")
    assert (found.run_id, found.created) == (made.run_id, made.created)
    assert {one.name: one.verdict for one in found.levels} == {one.name: one.verdict for one in made.levels}
    folder = write(tmp_path, proof_of(made))
    assert read_certificate(folder) == read_certificate(folder / "report.json")


def test_a_report_that_did_not_pass_is_no_certificate(tmp_path: Path) -> None:
    failed = report(levels(logits=level("logits", BROKEN)))
    nothing = [not_run(name, "no time") for name in LEVELS]
    of_others = report([*nothing, level("matrix")])
    assert of_others.verdict == "pass", "earlier versions made such reports of files in other types"
    for made, words in (
        (failed, "says fail at level logits"),
        (replace(failed, verdict="pass"), "says fail at level logits"),
        (report(nothing), "says not run"),
        (of_others, "nothing of the model file itself"),
    ):
        with pytest.raises(CertificateRefused, match=words):
            read_certificate(saved(tmp_path, made))


def huge(path: Path) -> None:
    """A sparse file of a terabyte, whose digest would take an hour."""
    path.touch()
    os.truncate(path, 1 << 40)


BAD_REPORTS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "a folder without one": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "empty": lambda path: path.write_bytes(b""),
    "no JSON": lambda path: path.write_bytes(b"GGUF\x03\0\0\0"),
    "other JSON": lambda path: path.write_bytes(b"[]"),
    "JSON of other keys": lambda path: path.write_bytes(b'{"verdict": "pass"}'),
    "another format": lambda path: path.write_bytes(to_json(report()).replace(b"report/1", b"report/2")),
    "no digest": lambda path: path.write_bytes(to_json(report(sha256="no digest"))),
    "huge": huge,
}


@pytest.mark.parametrize("kind", BAD_REPORTS)
def test_what_is_no_report_is_refused_in_one_line_that_names_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "given.json"
    BAD_REPORTS[kind](path)
    with pytest.raises(CertificateRefused) as raised:
        read_certificate(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def examined(folder: Path, model: Path, made: Report | None = None) -> Examined:
    """A certificate of the model, or the given one, beside the model."""
    certificate = read_certificate(saved(folder, made or report(sha256=sha256_of(model))))
    return asyncio.run(certificate.examined(read_info(model)))


@pytest.fixture
def proof(tmp_path: Path, tiny: Path) -> Examined:
    return examined(tmp_path, tiny)


def changed(model: Path) -> None:
    """One bit of its last weight."""
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)


def test_it_covers_the_file_whose_digest_it_has_by_whatever_name_and_no_other(tmp_path: Path, tiny: Path) -> None:
    made = report(sha256=sha256_of(tiny), file="another-name.gguf")
    body = examined(tmp_path, tiny, made).body(ON_A_CPU)
    assert (body.covers, body.differences) == ("exact", ())
    changed(tiny)
    found = examined(tmp_path, tiny, made)
    body = found.body(ON_A_CPU)
    line = f"model: sha256 {sha256_of(tiny)[:16]}… here, {made.model.sha256[:16]}… (another-name.gguf) in the report"
    assert (body.covers, body.differences) == ("differs", (line,))
    with pytest.raises(CertificateRefused, match=r"does not cover what runs here: model: sha256"):
        found.check_file()


def test_a_file_that_was_changed_after_its_digest_was_made_is_not_covered(tmp_path: Path, tiny: Path) -> None:
    found = examined(tmp_path, tiny)
    found.check_file()
    changed(tiny)
    assert found.body(ON_A_CPU).differences == ("model: the file was changed after its digest was made",)
    certificate, info = read_certificate(saved(tmp_path, report())), read_info(tiny)
    tiny.unlink()
    assert found.body(ON_A_CPU).covers == "differs"
    with pytest.raises(CertificateRefused, match="cannot be read"):
        asyncio.run(certificate.examined(info))


def test_no_report_covers_a_model_of_several_parts(tmp_path: Path) -> None:
    first, *_ = tiny_split(tmp_path)
    (line,) = examined(tmp_path, first, report(sha256=sha256_of(first))).body(ON_A_CPU).differences
    assert "a single file" in line


def test_a_report_without_these_facts_covers_nothing_exactly_and_says_so(tmp_path: Path, tiny: Path) -> None:
    """Reports were written so before."""
    old = json.loads(to_json(report(sha256=sha256_of(tiny))))
    del old["numerics"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(old))
    found = asyncio.run(read_certificate(path).examined(read_info(tiny)))
    line = "numerics: the report does not say what the model is computed with"
    assert found.body(ON_A_CPU).differences == (line,)
    assert examined(tmp_path, tiny).body(None).covers == "differs", "nor does an engine that says nothing"


def staged(certificate: Examined, *, is_required: bool) -> tuple[Stage, Front]:
    """A front that hears of its engines' deaths and successors."""
    settings = Settings(model="m", worker_id="w", parity_report=certificate.path, require_parity=is_required)
    front = Front(settings, Metrics("w"))
    front.certificate = certificate
    return Stage(observer=front), front


def loaded_with(numerics: Numerics) -> Loaded:
    return msgspec.structs.replace(FACTS, numerics=numerics)


@on_a_loop
async def test_health_says_of_each_engine_whether_it_is_covered(proof: Examined) -> None:
    stage, front = staged(proof, is_required=False)
    await stage.open(loaded_with(ON_A_CPU))
    front.open(stage.client)
    for numerics, covers in ((other("llama_cpp_sha256"), "differs"), (ON_A_CPU, "exact")):
        await stage.die()
        assert front.health().parity is None, "nothing computes"
        stage.say(loaded_with(numerics))
        parity = front.health().parity
        assert parity is not None
        assert (parity.covers, front.phase) == (covers, Phase.READY)
    await stage.client.close()


@pytest.mark.parametrize("name", OTHERS)
@on_a_loop
async def test_with_require_parity_no_engine_serves_that_differs_in_anything(proof: Examined, name: str) -> None:
    stage, front = staged(proof, is_required=True)
    await stage.open(loaded_with(other(name)))
    with pytest.raises(CertificateRefused, match=f"does not cover what runs here: {name}: "):
        front.open(stage.client)
    assert front.phase is Phase.STARTING
    await stage.client.close()


@on_a_loop
async def test_with_require_parity_a_successor_that_differs_ends_the_worker_and_gets_no_job(proof: Examined) -> None:
    stage, front = staged(proof, is_required=True)
    await stage.open(loaded_with(ON_A_CPU))
    front.open(stage.client)
    key = stage.submit()
    await stage.die()
    stage.say(loaded_with(other("cpu_features")))
    assert stage.engine.submitted == []
    assert [event["code"] for event in await stage.events(key) if event["type"] == "error"] == ["INFERENCE_FAILED"]
    assert front.phase is Phase.FAILED
    assert isinstance(front.fatal.result(), CertificateRefused)
    await stage.client.close()


FLAGS = ("--ctx-size", "512", "--parallel", "2")


@pytest.fixture(scope="module")
def on_this_machine(shallow_model: Path) -> Numerics:
    """The numerics that `parity run` finds of the model with the settings of a worker without flags."""
    config, info = configure(Settings(threads=1, device="cpu"), shallow_model), read_info(shallow_model)
    with served(config, info, placed(config, info), n_ctx=64, n_threads=1) as found:
        return found.numerics


@pytest.fixture(scope="module")
def certificate(shallow_model: Path, on_this_machine: Numerics, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = report(sha256=sha256_of(shallow_model), file=shallow_model.name, numerics=on_this_machine)
    return saved(tmp_path_factory.mktemp("certificate"), made)


def certified(model: Path, certificate: Path, *flags: str) -> WorkerProcess:
    where = ("--model", str(model), "--port", "0", "--device", "cpu", "--parity-report", str(certificate))
    return WorkerProcess(*where, *FLAGS, *flags)


@pytest.mark.process
@pytest.mark.model
def test_a_worker_that_runs_what_was_proved_is_covered_until_its_model_file_changes(
    shallow_model: Path, certificate: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model.gguf"
    shutil.copyfile(shallow_model, model)
    made = report()
    told = {
        "model_sha256": sha256_of(shallow_model),
        "verdict": "pass",
        "levels": {one.name: one.verdict for one in made.levels},
        "date": made.created,
        "run_id": made.run_id,
        "bounds": "built in",
        "covers": "exact",
        "differences": [],
    }
    with certified(model, certificate, "--require-parity") as worker:
        assert worker.ready().health()["parity"] == told
        assert worker.metrics()["worker_parity_certified"] == 1
        worker.engine.kill()
        worker.wait_for("engine_restarted")
        worker.wait_for("model_load_complete")
        assert worker.health()["parity"] == told
        with_another_bit = tmp_path / "next.gguf"
        shutil.copyfile(model, with_another_bit)
        changed(with_another_bit)
        with_another_bit.rename(model)
        worker.engine.kill()
        assert worker.exit_code() == 1
        (line,) = [entry for entry in worker.log if entry["event"] == "error"]
        assert line["code"] == "PARITY_REPORT_REFUSED"
        assert "model: the file was changed after its digest was made" in line["message"]


@pytest.mark.process
@pytest.mark.model
def test_a_worker_with_another_cache_than_the_report_s_serves_and_says_so(
    shallow_model: Path, certificate: Path, on_this_machine: Numerics
) -> None:
    flags = ("--cache-type-k", "q4_0", "--cache-type-v", "q4_0", "--threads", "2")
    with certified(shallow_model, certificate, *flags) as worker:
        parity = worker.ready().health()["parity"]
        lines = ["cache_type_k: q4_0 here, f16 in the report", "cache_type_v: q4_0 here, f16 in the report"]
        if on_this_machine.threads is not None:
            # Where ggml's own code computes the attention over f16, the threads share its sums; over q4_0 they do not.
            lines.append(f"threads: of no effect here, {on_this_machine.threads} in the report")
        assert (parity["covers"], parity["differences"]) == ("differs", lines), "the threads change no number"
        (entry,) = [entry for entry in worker.log if entry["event"] == "parity_differs"]
        assert (entry["level"], entry["differences"]) == ("warning", lines)


@pytest.mark.process
@pytest.mark.model
def test_require_parity_refuses_to_become_ready_and_names_every_difference(
    shallow_model: Path, on_this_machine: Numerics, tmp_path: Path
) -> None:
    elsewhere = msgspec.structs.replace(
        on_this_machine,
        device="cuda NVIDIA H100 80GB HBM3",
        llama_cpp_sha256="0" * 64,
        cpu_features=on_this_machine.cpu_features[1:],
    )
    path = saved(tmp_path, report(sha256=sha256_of(shallow_model), numerics=elsewhere))
    with certified(shallow_model, path, "--require-parity") as worker:
        line = worker.failure()
        assert line["code"] == "PARITY_REPORT_REFUSED"
        names = ("device: cpu here", "cpu_features: ", "llama_cpp_sha256: ")
        assert [name for name in names if name not in line["message"]] == []
        assert "ready" not in {entry["event"] for entry in worker.log}


@pytest.mark.process
@pytest.mark.parametrize(
    ("made", "words"),
    [
        (report(), "does not cover what runs here: model: sha256"),
        (report(levels(logits=level("logits", BROKEN))), "says fail at level logits"),
    ],
)
def test_a_report_for_another_file_or_one_that_failed_prevents_the_load(
    tmp_path: Path, tiny: Path, made: Report, words: str
) -> None:
    environment = {"LLORCH_PARITY_REPORT": str(saved(tmp_path, made)), "LLORCH_REQUIRE_PARITY": "1"}
    with WorkerProcess("--model", str(tiny), "--port", "0", environment=environment) as worker:
        line = worker.failure()
        assert line["code"] == "PARITY_REPORT_REFUSED"
        assert words in line["message"]
        assert "model_load_start" not in {entry["event"] for entry in worker.log}


@pytest.mark.process
def test_while_a_huge_file_is_read_the_front_answers_and_a_signal_ends_it(tmp_path: Path, tiny: Path) -> None:
    huge(tiny)
    path = saved(tmp_path, report())
    with WorkerProcess("--model", str(tiny), "--port", "0", "--parity-report", str(path)) as worker:
        worker.listening()
        eventually(lambda: worker.get("/livez").status_code == 200)
        answer = worker.get("/health")
        assert (answer.status_code, json.loads(answer.content)["parity"]) == (503, None)
        worker.terminate()
        assert worker.exit_code() == 0
