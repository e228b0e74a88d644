"""The pages say what is so: every link and every page that code names leads somewhere, every flag on them exists, and
docs/protocol.md names all that the worker says to the outside. And help says what an option does, and units."""

import ast
import importlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

import pytest
import rich_click as click

from tests.imports import Source, sources
from worker import errors
from worker.apis.core.bodies import HealthBody, ReadyCallback
from worker.apis.core.events import EVENT_TYPES, StreamCode
from worker.cli import setting_options
from worker.config.settings import options
from worker.config.spellings import llama_server_flags
from worker.server.front.admission import Phase
from worker.wire.load import Tried

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / ".github").rglob("*.md"), ROOT / "patches/README.md"])
ROOMS = ("worker", "parity", "client", "tools", "deploy", "scripts", "tests")
CODE = [
    *(file for room in ROOMS for file in (ROOT / room).rglob("*") if re.search(r"\.(py|sh|toml|ya?ml)$", file.name)),
    *(ROOT / name for name in ("Makefile", "pyproject.toml", "models.toml")),
    *ROOT.glob("Dockerfile.*"),
]


# ── links ────────────────────────────────────────────────────────────────────────────────────────

BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)|<(?:img|a)\b[^>]*\b(?:src|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
NAMED = re.compile(r"(?<!/)\bdocs/[\w/-]+\.md(?:#[\w-]+)?(?:(?:,| and) #[\w-]+)*(?: \d+\b)?")
"""A page as code names it: `docs/protocol.md`, and with anchors, `docs/protocol.md#http and #life-of-a-job`. The number
of a section behind a space is found, too, because it is wrong: sections are cited by their anchors."""


def text_of(page: Path) -> str:
    """The page without its blocks of code."""
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    kept = re.sub(r"\]\([^)]*\)", "", heading)
    return re.sub(r"[^\w\- ]", "", kept).lower().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    found: dict[str, int] = {}
    for one in map(slug, HEADING.findall(text_of(page))):
        found[one] = found.get(one, -1) + 1
    return {one if not number else f"{one}-{number}" for one, last in found.items() for number in range(last + 1)}


def broken(page: Path, target: str) -> bool:
    if re.match(r"[a-z]+:", target):
        return False
    path, _, anchor = target.partition("#")
    there = (page.parent / path).resolve() if path else page
    return not there.exists() or bool(anchor and anchor not in anchors(there))


def is_there(named: str) -> bool:
    """True if the page that code names exists and has all the anchors, and no section is cited by its number."""
    path, *cited = re.split(r",? (?:and )?(?=#)|(?<=\.md)(?=#)", named)
    page = ROOT / path
    return page.is_file() and {anchor.removeprefix("#") for anchor in cited} <= anchors(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    targets = [one or other for one, other in LINK.findall(text_of(page))]
    assert [target for target in targets if broken(page, target)] == []


def test_every_page_that_code_names_is_there() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}: {named}"
        for file in CODE
        for named in NAMED.findall(file.read_text(encoding="utf-8"))
        if not is_there(named)
    ]
    assert wrong == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    """Positive control: without it a pattern that matches nothing would pass for ever."""
    for target in ("gone.md", "#gone", "openai.md#gone"):
        assert broken(DOCS / "protocol.md", target)
        assert list(LINK.finditer(f"see [it]({target})"))
    right = ("protocol.md", "protocol.md#http", "protocol.md#http and #life-of-a-job")
    wrong = ("gone.md", "protocol.md#gone", "protocol.md#http and #gone", "protocol.md 3")
    for tail in (*right, *wrong):
        assert NAMED.findall(f"see docs/{tail} or docs/{tail}.") == [f"docs/{tail}"] * 2
        assert is_there(f"docs/{tail}") == (tail in right)
    assert slug("4 `POST /execute`, llama.cpp") == "4-post-execute-llamacpp"


# ── docs/protocol.md ─────────────────────────────────────────────────────────────────────────────

PROTOCOL = (DOCS / "protocol.md").read_text()
LEGACY = {"--gpu-device", "--cuda-device", "--metal-device", "--gpu", "--backend", "--hive-url", "--queen-url"}


def codes() -> Iterator[str]:
    """The codes of errors outside a stream, and of failed starts. A wrong command line has no code on stderr."""
    for error in vars(errors).values():
        is_told = isinstance(error, type) and issubclass(error, errors.WorkerError) and error is not errors.UsageError
        if is_told and "code" in vars(error):
            yield error.code


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("stream event", EVENT_TYPES),
        ("stream code", get_args(StreamCode)),
        ("state", [phase.name.lower() for phase in Phase]),
        ("key of /health", HealthBody.__struct_fields__ + Tried.__struct_fields__),
        ("key of the callback", ReadyCallback.__struct_fields__),
        ("code", list(codes())),
    ],
)
def test_the_protocol_names_every(kind: str, names: Iterable[str]) -> None:
    named = re.findall(r"[A-Za-z_][A-Za-z0-9_]*", " ".join(re.findall(r"`[^`\n]+`", PROTOCOL)))
    assert set(names) - set(named) == set(), kind


def test_every_flag_of_the_protocol_is_one_that_there_is() -> None:
    flags = {option.opts[0] for option in options()} | {"--config", "--local-mode", "--kv-cache-size-mb", "--help"}
    assert set(re.findall(r"--[a-z][a-z-]+", PROTOCOL)) - flags - LEGACY == set()


# ── docs/migrating ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", sorted((DOCS / "migrating").glob("*.md")), ids=lambda page: page.stem)
def test_each_flag_of_ours_on_a_page_for_users_of_other_servers_exists(page: Path) -> None:
    """Ours are in the second column of its tables. And the page says what the other server does better."""
    ours = {flag for option in setting_options() for flag in option.opts} | {"--chat", "--help"}
    text = page.read_text(encoding="utf-8")
    cells = [row.strip("|").split(" | ")[1] for row in text.splitlines() if row.startswith("| ")]
    coded = [code.split("|")[0] for cell in cells for code in re.findall(r"`([^`]+)`", cell)]
    named = {flag for code in coded for flag in re.findall(r"(?<![\w-])--?[a-z][a-z-]*\b", code)}
    assert len(named) > 5
    assert named - ours == set()
    assert re.search(r"^## What stays better in", text, re.MULTILINE)


def test_each_flag_of_llama_servers_that_the_worker_knows_is_on_the_page() -> None:
    page = (DOCS / "migrating" / "from-llama-server.md").read_text(encoding="utf-8")
    named = {flag for code in re.findall(r"`([^`\n]+)`", page) for flag in re.findall(r"(?<![\w-])--?[\w-]+", code)}
    known = llama_server_flags()
    assert {flag for theirs in (*known.ours.values(), *known.advice.values()) for flag in theirs} <= named


# ── help ─────────────────────────────────────────────────────────────────────────────────────────

COMMANDS = (
    *(f"worker.commands.{name}:{name}" for name in ("chat", "devices", "generate", "launch", "models")),
    *("worker.commands.inspect_gguf:inspect", "parity.command:parity"),
)
"""module:attribute"""

SAYS_MEGABYTES = {"worker.models.downloads.fetch"}
"""Sizes of files on disks and servers, which count in millions there."""


def options_of(command: click.Command) -> Iterator[tuple[str, click.Option]]:
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden:
            yield f"{command.name} {param.opts[0]}", param
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from options_of(below)


def every_option() -> Iterator[tuple[str, click.Option]]:
    yield from ((f"serve {option.opts[0]}", option) for option in setting_options())
    for module, _, attribute in (place.partition(":") for place in COMMANDS):
        yield from options_of(getattr(importlib.import_module(module), attribute))


def strings_of(module: Source) -> Iterator[str]:
    """The module's texts that are no docstrings."""
    documents = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield node.value


@pytest.mark.parametrize(("name", "option"), list(every_option()))
def test_help_says_what_the_option_does_in_whole_sentences_with_its_unit(name: str, option: click.Option) -> None:
    told = (option.help or "").strip()
    assert re.match(r"[A-Z][a-z]+ ", told), told
    assert told.endswith((".", "]")), told
    assert "N MiB" in told or not name.endswith("-mb")
    assert option.metavar == "SECONDS" or not name.endswith("-sec")


def test_no_text_calls_a_mebibyte_a_megabyte() -> None:
    others = [module for module in sources() if module.name not in SAYS_MEGABYTES]
    assert not [text for module in others for text in strings_of(module) if re.search(r"\bMB\b", text)]


def test_nothing_is_installed_from_an_index_under_our_name() -> None:
    """No index has the package, so that anybody could register the name."""
    texts = [*(module.text for module in sources()), *(page.read_text(encoding="utf-8") for page in PAGES)]
    assert not [text for text in texts if re.search(r"pip install ['\"]?llorch-worker", text)]
