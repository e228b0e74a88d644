"""The house's prose: docstrings are sentences, and each thing has one plain word, in code, help, errors and docs.

A docstring that begins with a preposition or a question word ("What a step has", "Of each slot") has no main clause, or
hides it. Both rules hold for everything in `CLEAN`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sentences import counted, n_words

ROOT = Path(__file__).parents[1]

CLEAN = (
    *("worker", "parity", "client", "tools", "scripts", "deploy", "docs", "README.md", "CONTRIBUTING.md"),
    *("SECURITY.md", "CODE_OF_CONDUCT.md", ".github"),
    *("patches/README.md", "Makefile", "Dockerfile.cpu", "Dockerfile.cuda", "Dockerfile.metal"),
)
"""Folders, of which the files with a suffix of `PROSE` count, and single files."""

PROSE = {".py", ".md", ".sh", ".c", ".yaml", ".yml"}

TESTS = (
    *sorted(f"tests/{path.parent.name}" for path in (ROOT / "tests").glob("*/__init__.py")),
    *sorted(f"tests/{path.name}" for path in (ROOT / "tests").glob("*.py")),
)
"""The rooms of tests whose docstrings are sentences too, and whose tests have plain names."""

FRAGMENT = re.compile(
    r"(As|At|By|For|From|How|In|Of|That|What|Whatever|When|Where|Whether|Which|Who|Whoever|Whose|Why|With|Without)\b"
)

PHRASES = {
    r"and the like|and their like": "such as, before the examples",
    r"any company|its company|beside others": "next to any others, under load",
    r"beginnings?( of prompts?|,? that)": "prefix",
    r"ended jobs?": "finished jobs",
    r"found computed": "cached",
    r"give[sn]? way to": "preempts, waits for",
    r"guess(ed|es)? tokens?|tokens? (it|they) guess": "draft tokens",
    r"held up": "delayed",
    r"(?<!~)nobody": "no job, no client, no user; or the passive",
    r"last words\b": "last line",
    r"(?-i:LEAST_)|least_(s|rows|bytes|cells|values)": "MIN_, min_",
    r"or leave (--|\{)": "remove",
    r"(?-i:MOST_)|most_(s|bytes|cells|jobs|parts)\b": "MAX_, max_",
    r"so many (cells|jobs|rows|slots|tokens|of)": "n, this many, as many",
    r"somebody": "a client, a job, another process",
    r"\btold\b": "reported, asked, given",
    r"(?<!\.)\btells?\b(?! me about)": "says, reports, shows",
    r"\bwhoever": "the user, the operator, the caller",
}
"""pattern → the house's words"""


def sources(place: str) -> list[Path]:
    path = ROOT / place
    found = sorted(file for file in path.rglob("*") if file.suffix in PROSE) if path.is_dir() else [path]
    assert found, f"{place} has nothing to read"
    return found


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for child in node.body:
                match child:
                    case ast.Expr(ast.Constant(str(text))):
                        yield child.lineno, text.strip()


@pytest.mark.parametrize("place", [*CLEAN, *TESTS])
def test_no_docstring_is_a_fragment(place: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for file in sources(place)
        if file.suffix == ".py"
        for line, text in docstrings(ast.parse(file.read_text()))
        if FRAGMENT.match(text)
    ]
    assert not found, "\n".join(["give these a subject and a verb:", *found])


@pytest.mark.parametrize("place", TESTS)
def test_a_tests_name_is_in_plain_words(place: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}: {node.name}: {hit[0]!r} → {better}"
        for file in sources(place)
        if file.suffix == ".py"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        for phrase, better in PHRASES.items()
        for hit in re.finditer(phrase, node.name.replace("_", " "), re.IGNORECASE)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("place", CLEAN)
def test_each_thing_has_its_plain_word(place: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{text.count(chr(10), 0, hit.start()) + 1}: {hit[0]!r} → {better}"
        for file in sources(place)
        for text in [file.read_text()]
        for phrase, better in PHRASES.items()
        for hit in re.finditer(phrase, text, re.IGNORECASE)
    ]
    assert not found, "\n".join(found)


FIRST_READ = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"),
    *sorted(
        str(page.relative_to(ROOT))
        for folder in ("tutorial", "migrating", "reference")
        for page in (ROOT / "docs" / folder).glob("*.md")
    ),
    *(f"docs/{name}.md" for name in ("install", "models", "tuning", "clients", "page", "chat", "images", "kubernetes")),
    *(f"docs/{name}.md" for name in ("routers", "operating", "security", "troubleshooting", "upgrades", "glossary")),
    *(f"docs/{name}.md" for name in ("protocol", "openai", "responses", "messages")),
)
"""The pages that users read first."""

EXPLANATIONS = (
    *(f"docs/{name}.md" for name in ("architecture", "chat", "decisions", "determinism", "performance", "scaling")),
    *sorted(
        str(page.relative_to(ROOT))
        for folder in ("measurements", "device-checks")
        for page in (ROOT / "docs" / folder).glob("*.md")
    ),
)
"""The pages with reasons and numbers."""

MAX_README_WORDS = 700


@pytest.mark.parametrize("name", [*FIRST_READ, *EXPLANATIONS])
def test_a_page_has_no_sentence_of_more_than_long_words_and_no_chain_of_semicolons(name: str) -> None:
    found = counted((ROOT / name).read_text(encoding="utf-8"))
    assert [*found.long, *found.chained] == []


def test_the_readme_is_read_in_minutes() -> None:
    assert counted((ROOT / "README.md").read_text(encoding="utf-8")).words <= MAX_README_WORDS


def test_sentences_end_where_a_reader_pauses() -> None:
    """Positive control: without it a splitter that finds no sentence, or too many, would pass for ever."""
    word = "word " * 20
    page = f"# Title\n\nA {word}b. C {word}d: `x; y`\n\n- E {word}\n- F; g; h\n\n| cell; cell; | {word * 3} |\n"
    found = counted(page)
    assert [n_words(one) for one in found.sentences] == [22, 23, 21, 3]
    assert found.chained == ("- F; g; h",)
    assert found.long == ()
    assert counted(f"I {word} {word}").long


def test_the_rules_find_what_they_forbid() -> None:
    """Positive control: without it a rule that matches nothing would pass for ever."""
    tree = ast.parse('"""Of each slot."""\nclass A:\n    """It is."""\n    b: int\n    """How many."""\n')
    assert [text for _, text in docstrings(tree) if FRAGMENT.match(text)] == ["Of each slot.", "How many."]
    assert re.search("|".join(PHRASES), "the caller is told")
