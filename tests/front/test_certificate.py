"""`--parity-report`: what a report certifies, and that one about another file prevents the start."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gguf_files import tiny_model, tiny_split
from tests.parity.reports import BROKEN, SHA256, level, levels, report
from tests.worker_process import WorkerProcess, eventually, serve_default
from worker.errors import CertificateRefused
from worker.front.certificate import read_certificate
from worker.model.catalog import sha256_of
from worker.model.info import read_info
from worker.parity.bundle import proof_of, write
from worker.parity.report import LEVELS, Report, not_run, to_json


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_model().write(tmp_path / "tiny.gguf")


def saved(folder: Path, made: Report) -> Path:
    path = folder / "report.json"
    path.write_bytes(to_json(made))
    return path


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def test_a_certificate_says_what_the_report_says(tmp_path: Path) -> None:
    made = report()
    found = read_certificate(saved(tmp_path, made))
    assert (found.model_sha256, found.model_file, found.verdict) == (SHA256, "tiny.gguf", "pass")
    assert (found.run_id, found.date) == (made.run_id, made.created)
    assert found.levels == {one.name: one.verdict for one in made.levels}
    assert found.levels["serving"] == "not run"


def test_a_bundle_s_folder_stands_for_its_report(tmp_path: Path) -> None:
    folder = write(tmp_path, proof_of(report()))
    assert read_certificate(folder) == read_certificate(folder / "report.json")


def test_a_report_that_did_not_pass_is_no_certificate(tmp_path: Path) -> None:
    failed = report(levels(logits=level("logits", BROKEN)))
    with pytest.raises(CertificateRefused, match="says fail at level logits"):
        read_certificate(saved(tmp_path, failed))
    with pytest.raises(CertificateRefused, match="says fail at level logits"):
        read_certificate(saved(tmp_path, replace(failed, verdict="pass")))
    with pytest.raises(CertificateRefused, match="says not run"):
        read_certificate(saved(tmp_path, report([not_run(name, "no time") for name in LEVELS])))


def huge(path: Path) -> None:
    """A sparse file of a terabyte, whose digest would take an hour."""
    path.touch()
    os.truncate(path, 1 << 40)


def test_a_report_of_other_files_only_is_no_certificate(tmp_path: Path) -> None:
    """As `parity matrix` makes it."""
    others = [*(not_run(name, "not asked for") for name in LEVELS), level("matrix")]
    assert report(others).verdict == "pass"
    with pytest.raises(CertificateRefused, match="nothing of the model file itself"):
        read_certificate(saved(tmp_path, report(others)))


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


# ── is it this file's? ───────────────────────────────────────────────────────────────────────────


def test_it_speaks_for_the_file_whose_digest_it_has_by_whatever_name(tmp_path: Path, tiny: Path) -> None:
    certificate = read_certificate(saved(tmp_path, report(sha256=sha256_of(tiny), file="another-name.gguf")))
    asyncio.run(certificate.check(read_info(tiny)))


def test_it_does_not_speak_for_a_file_with_one_bit_changed(tmp_path: Path, tiny: Path) -> None:
    certificate = read_certificate(saved(tmp_path, report(sha256=sha256_of(tiny))))
    data = bytearray(tiny.read_bytes())
    data[-1] ^= 1
    tiny.write_bytes(data)
    with pytest.raises(CertificateRefused, match=r"is about tiny\.gguf with sha256 .*…, and tiny\.gguf has"):
        asyncio.run(certificate.check(read_info(tiny)))


def test_it_does_not_speak_for_a_model_of_several_parts(tmp_path: Path) -> None:
    first, *_ = tiny_split(tmp_path)
    certificate = read_certificate(saved(tmp_path, report(sha256=sha256_of(first))))
    with pytest.raises(CertificateRefused, match="a single file"):
        asyncio.run(certificate.check(read_info(first)))


def test_a_model_that_vanished_is_one_line(tmp_path: Path, tiny: Path) -> None:
    certificate, info = read_certificate(saved(tmp_path, report())), read_info(tiny)
    tiny.unlink()
    with pytest.raises(CertificateRefused, match="cannot be read"):
        asyncio.run(certificate.check(info))


# ── in the worker ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def certified(shallow_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = tmp_path_factory.mktemp("certificate")
    path = saved(folder, report(sha256=sha256_of(shallow_model), file=shallow_model.name))
    with serve_default(shallow_model, "--ctx-size", "512", "--parity-report", str(path)) as worker:
        yield worker.ready()


@pytest.mark.process
@pytest.mark.model
def test_health_shows_the_certificate(certified: WorkerProcess, shallow_model: Path) -> None:
    made = report()
    assert certified.health()["parity"] == {
        "model_sha256": sha256_of(shallow_model),
        "verdict": "pass",
        "levels": {one.name: one.verdict for one in made.levels},
        "date": made.created,
        "run_id": made.run_id,
        "bounds": "built in",
    }


@pytest.mark.process
@pytest.mark.parametrize(
    ("made", "words"),
    [
        (report(), "the parity report is about tiny.gguf"),
        (report(levels(logits=level("logits", BROKEN))), "says fail at level logits"),
    ],
)
def test_a_report_for_another_file_or_one_that_failed_prevents_the_start(
    tmp_path: Path, tiny: Path, made: Report, words: str
) -> None:
    environment = {"LLORCH_PARITY_REPORT": str(saved(tmp_path, made))}
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
