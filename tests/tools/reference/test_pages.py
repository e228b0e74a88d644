"""The generated reference pages: they are what the code says now, and leave out no flag, code, series or event."""

import re
from pathlib import Path
from typing import get_args

import pytest

from tools.reference.__main__ import FOLDER, PAGES, pages
from tools.reference.errors import api_codes, refusal_classes, startup_classes
from tools.reference.openapi import DOCUMENT
from tools.reference.operating import metrics_page, own_series, vllm_series, written
from tools.reference.options import configuration_page
from tools.reference.text import GENERATED, TEXTS
from worker.apis.core.events import StreamCode
from worker.cli import setting_options
from worker.config.spellings import legacy_options
from worker.observe.log_lines import LogEvent
from worker.observe.metrics import Metrics


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    return pages()


@pytest.mark.parametrize("path", [DOCUMENT, *(FOLDER / name for name in PAGES)], ids=str)
def test_a_file_is_what_the_code_says_now(path: Path, made: dict[Path, str]) -> None:
    assert path.read_text(encoding="utf-8") == made[path], "run `make reference`"


def test_no_page_says_that_it_is_generated_and_is_not() -> None:
    marked = {path.name for path in FOLDER.iterdir() if GENERATED in path.read_text(encoding="utf-8")}
    assert marked == set(PAGES)


def test_every_flag_variable_and_key_has_one_row() -> None:
    rows = [line for line in configuration_page().splitlines() if line.startswith("| `-")]
    shown = [option for option in setting_options() if not option.hidden]
    for option in shown:
        found = [row for row in rows if f"`{option.opts[0]}`" in row.split("|")[1]]
        assert len(found) == 1, option.opts
        assert all(f"`{flag}`" in found[0] for flag in option.opts)
    assert len(rows) == len(shown) + len(legacy_options())


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("refusals", [cls.code for cls in refusal_classes()]),
        ("stream", get_args(StreamCode)),
        ("api", list(api_codes())),
        ("startup", [cls.code for cls in startup_classes()]),
        ("occasions", get_args(LogEvent)),
    ],
)
def test_every_code_and_event_is_explained_and_no_other(kind: str, known: list[str]) -> None:
    assert sorted(known) == sorted(TEXTS[kind])


def test_every_event_is_found_in_the_code() -> None:
    """An event that is written in a way that the walk does not see would have an empty row."""
    assert [event for event, found in written().items() if not found.levels] == []


def test_every_series_has_a_row() -> None:
    body, _ = Metrics("w").render(None)
    names = {name for name in re.findall(r"^# TYPE (\S+)", body.decode(), re.MULTILINE) if "process_" not in name}
    page = metrics_page()
    assert [name for name in names if f"| `{name}` |" not in page] == []
    assert len(names) == len([*own_series(), *vllm_series()])
