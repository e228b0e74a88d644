"""The workflows under .github: they run what developers run, and may do no more than they must."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FILES = [*WORKFLOWS, *sorted((ROOT / ".github" / "actions").glob("*/action.yml"))]
MAY_WRITE = {"images.yml": {"packages"}, "wheels.yml": {"contents", "id-token", "attestations"}}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_only_reads_unless_listed_here_and_never_runs_twice_at_once(path: Path) -> None:
    text = path.read_text()
    assert "\npermissions:\n  contents: read\n" in text
    assert "\nconcurrency:\n" in text
    assert set(re.findall(r"([\w-]+): write$", text, re.MULTILINE)) == MAY_WRITE.get(path.name, set())
    assert len(re.findall(r"^ +runs-on:", text, re.MULTILINE)) == len(re.findall("timeout-minutes:", text))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name + "/" + path.name)
def test_every_action_names_its_version_and_keeps_no_credentials(path: Path) -> None:
    text = path.read_text()
    foreign = [used for used in re.findall(r"uses: (\S+)", text) if not used.startswith("./")]
    assert [used for used in foreign if not re.fullmatch(r"[\w./-]+@v\d+", used)] == []
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_is_run_is_a_target_of_the_makefile_or_a_script_that_is_there(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = path.read_text()
    assert set(re.findall(r"run: make ([a-z-]+)", text)) <= targets
    scripts = re.findall(r"run: (scripts/\S+)", text)
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


def test_nothing_a_stranger_writes_becomes_part_of_a_script() -> None:
    """Titles, branches and messages reach a script through the environment alone, as do other expressions."""
    for path in FILES:
        steps = re.findall(r"run: (?:\|\n((?:\s{8,}.*\n)+)|(.*)\n)", path.read_text())
        assert [step for pair in steps for step in pair if "${{" in step] == [], path.name
