"""scripts/apply_patches.py, which changes llama.cpp before it is built: a hunk lands at its own line or nowhere."""

import difflib
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "apply_patches.py"
VERSION = "1.2.3"


def apply(folder: Path, *patches: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), VERSION, str(folder), *map(str, patches)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def patch(path: Path, before: str, after: str, head: str = f"For llama-cpp-python {VERSION}.", name: str = "x") -> Path:
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{name}", f"b/{name}", n=0)
    path.write_text(f"{head}\n{''.join(lines)}")
    return path


def texts() -> st.SearchStrategy[str]:
    """Few different lines, so that the same often stand at several places."""
    return st.lists(st.sampled_from("abc-+"), max_size=12).map(lambda lines: "".join(f"{line}\n" for line in lines))


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(before=texts(), after=texts())
def test_the_result_is_what_diff_shows(tmp_path_factory: pytest.TempPathFactory, before: str, after: str) -> None:
    folder = tmp_path_factory.mktemp("source")
    (folder / "x").write_text(before)
    run = apply(folder, patch(folder / "p.patch", before, after))
    if before == after:
        assert "no change in it" in run.stderr
    else:
        assert run.returncode == 0, run.stderr
    assert (folder / "x").read_text() == after


def test_patches_are_applied_one_after_the_other_to_every_file_they_name(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "x").write_text("1\n2\n")
    (tmp_path / "deep" / "y").write_text("3\r\n\f4\n")
    first = patch(tmp_path / "1.patch", "1\n2\n", "1\nnew\n2\n")
    first.write_text(first.read_text() + "diff --git a/deep/y b/deep/y\nindex 1..2 100644\n")
    first.write_text(first.read_text() + "--- a/deep/y\n+++ b/deep/y\n@@ -2,0 +3 @@ somewhere\n+five\n")
    second = patch(tmp_path / "2.patch", "1\nnew\n2\n", "1\nnew\nnewer\n2\n")
    run = apply(tmp_path, first, second)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "x").read_text() == "1\nnew\nnewer\n2\n"
    assert (tmp_path / "deep" / "y").read_bytes() == b"3\r\n\f4\nfive\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("For llama-cpp-python 1.2.4.\n--- a/x\n+++ b/x\n@@ -1,0 +2 @@\n+b\n", "not for this version"),
        ("--- a/x\n+++ b/x\n@@ -1,0 +2 @@\n+llama-cpp-python 1.2.3\n", "not for this version"),
        ("llama-cpp-python 1.2.3\n--- a/z\n+++ b/z\n@@ -1,0 +2 @@\n+b\n", "there is no file z"),
        ("llama-cpp-python 1.2.3\n--- a/x\n+++ b/x\n@@ -9,0 +10 @@\n+b\n", "does not apply to x, line 10"),
        ("llama-cpp-python 1.2.3\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-b\n+c\n", "does not apply to x, line 1"),
        ("llama-cpp-python 1.2.3\n--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n a\n+b\n", "use diff -U0"),
        ("llama-cpp-python 1.2.3\n", "no change in it"),
    ],
)
def test_one_that_does_not_fit_is_refused_and_changes_nothing(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "x").write_text("a\n")
    (tmp_path / "p.patch").write_text(text)
    run = apply(tmp_path, tmp_path / "p.patch")
    assert run.returncode == 1
    assert run.stderr.startswith("apply_patches: ")
    assert reason in run.stderr
    assert (tmp_path / "x").read_text() == "a\n"


def test_the_patches_of_this_repository_are_ours_alone() -> None:
    """No line of context in them, and short enough to be read."""
    for path in (ROOT / "patches").glob("*.patch"):
        lines = path.read_text().split("\n")
        assert len(lines) <= 100, path
        body = lines[next(at for at, line in enumerate(lines) if line.startswith("--- ")) :]
        assert {line[:1] for line in body} <= {"-", "+", "@", "d", "i", ""}, path
