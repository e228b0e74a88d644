"""`verify` finds whatever was done to a bundle after it was written, and says where."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from parity.bundle import COMMON, MANIFEST, REPORT_TEXT, proof_of, verify, write
from tests.parity.reports import BROKEN, FAILED, level, levels, report


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good bundle; tests change copies of it."""
    return write(tmp_path_factory.mktemp("bundles"), proof_of(report(levels(checkpoints=FAILED))))


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "run"))


def manifest_of(folder: Path) -> dict[str, dict[str, dict[str, object]]]:
    found: dict[str, dict[str, dict[str, object]]] = json.loads((folder / MANIFEST).read_text())
    return found


def forge(folder: Path, name: str, old: str, new: str) -> None:
    """Change a file and make its digest fit: what remains is what the file says."""
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))
    sign(folder, name)


def sign(folder: Path, name: str) -> None:
    data, manifest = (folder / name).read_bytes(), manifest_of(folder)
    manifest["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_a_good_bundle_has_nothing_wrong_whatever_its_verdict(written: Path) -> None:
    assert verify(written) == []


# ── files ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", [*COMMON, "report.json", REPORT_TEXT])
def test_a_changed_lengthened_or_deleted_file_is_named(folder: Path, name: str) -> None:
    path = folder / name
    data = path.read_bytes()
    path.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
    assert any(name in line and "sha256" in line for line in verify(folder))
    path.write_bytes(data + b"\n")
    assert any(name in line and "bytes" in line for line in verify(folder))
    path.unlink()
    assert f"{name} is missing" in verify(folder)


@pytest.mark.parametrize("name", [*COMMON, "report.json", REPORT_TEXT])
def test_a_file_taken_out_of_the_manifest_too_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    manifest = manifest_of(folder)
    del manifest["files"][name]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert any(line.startswith(f"{name} is not in {MANIFEST}") for line in verify(folder))


def test_an_added_file_is_named(folder: Path) -> None:
    (folder / "plots").mkdir(exist_ok=True)
    (folder / "plots" / "extra.png").write_bytes(b"x")
    (folder / ".hidden").write_bytes(b"x")
    assert [line.split(" ")[0] for line in verify(folder)] == [".hidden", "plots/extra.png"]


def test_a_link_in_a_file_s_place_is_named_and_not_followed(folder: Path, tmp_path: Path) -> None:
    shutil.move(folder / "README.md", tmp_path / "outside.md")
    (folder / "README.md").symlink_to(tmp_path / "outside.md")
    (folder / "more").symlink_to(tmp_path)
    assert "README.md is no regular file" in verify(folder)
    assert f"more is not in {MANIFEST}: it was added" in verify(folder)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", "..", "", "a\\b", "./report.json", "a//b"])
def test_a_manifest_that_leads_elsewhere_is_refused_before_anything_is_read(folder: Path, name: str) -> None:
    manifest = manifest_of(folder)
    manifest["files"][name] = {"sha256": "0" * 64, "size_bytes": 0}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert verify(folder) == [f"{MANIFEST} names {name!r}, which is no file of a bundle"]


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-20]),
        lambda path: path.write_bytes(b"[]"),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"parity"', b'"purity"')),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"run_id"', b'"note": 1, "run_id"')),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"sha256": "', b'"sha256": "Z', 1)),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"size_bytes": ', b'"size_bytes": -', 1)),
    ],
)
def test_without_its_manifest_a_folder_is_no_bundle(folder: Path, change: Callable[[Path], object]) -> None:
    change(folder / MANIFEST)
    (line,) = verify(folder)
    assert line.startswith(MANIFEST)


# ── what the files say, with digests that fit ────────────────────────────────────────────────────


def test_an_edited_value_gives_another_verdict(folder: Path) -> None:
    forge(folder, "report.json", f'"value": {BROKEN.value}', '"value": 0.00001')
    assert verify(folder) == [
        "report.json: level checkpoints says 'fail'; its checks give 'pass'",
    ]


def test_a_flipped_whole_is_found(folder: Path) -> None:
    forge(folder, "report.json", '"verdict": "fail"', '"verdict": "pass"')
    assert "report.json: the report says 'pass'; its levels give 'fail'" in verify(folder)
    assert "metadata.json says 'fail'; report.json 'pass'" in verify(folder)


def test_a_level_left_out_is_found(tmp_path: Path) -> None:
    made = report(levels(logits=level("logits", BROKEN)))
    shortened = replace(made, verdict="pass", levels=tuple(one for one in made.levels if one.name != "logits"))
    (line,) = verify(write(tmp_path, proof_of(shortened)))
    assert line.startswith("report.json: level logits is missing")


@pytest.mark.parametrize("name", ["report.json", "metadata.json"])
def test_a_file_of_another_run_is_found(folder: Path, name: str) -> None:
    forge(folder, name, report().run_id, "another-run")
    assert f"{name} is of run 'another-run'; {MANIFEST} of {report().run_id!r}" in verify(folder)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("README.md", "# AUTOGENERATED", "# Written"),
        ("report.md", "# AUTOGENERATED", "\n# AUTOGENERATED"),
        ("seeds.ndjson", "_meta", "meta"),
        ("transcript.ndjson", "{", "{{"),
        ("timings.json", "generated_by", "made_by"),
        ("metadata.json", "{", "["),
    ],
)
def test_a_file_that_hides_that_it_was_generated_is_found(folder: Path, name: str, old: str, new: str) -> None:
    forge(folder, name, old, new)
    assert any(line.startswith(name) for line in verify(folder))


def test_a_report_that_is_none_is_found(folder: Path) -> None:
    (folder / "report.json").write_text('{"generated_by": "me", "run_id": "20260102-030405-0123abcd"}')
    sign(folder, "report.json")
    (line,) = verify(folder)
    assert line.startswith("report.json is not a report")
