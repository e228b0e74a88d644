"""The house's prose: docstrings are sentences, and each thing has one plain word, in code, help, errors and docs.

A docstring that begins with a preposition or a question word ("What a step has", "Of each slot") has no main clause, or
hides it. `CLEAN` has the rooms and pages that keep both rules; a room that is rewritten joins it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

CLEAN = (
    *("worker/__main__.py", "worker/argv.py", "worker/cli.py", "worker/errors.py", "worker/host.py"),
    *("worker/limits.py", "worker/serve.py", "worker/commands", "worker/config", "worker/constraints"),
    *("worker/downloads", "worker/llama", "worker/loading", "worker/model", "worker/observe", "worker/plan"),
    *("worker/engine", "worker/front", "worker/protocol", "worker/wire"),
    *("worker/process", "worker/sampling", "worker/saved", "worker/upstream", "worker/chat", "worker/openai"),
    *("worker/web", "parity", "client", "tools", "deploy", "README.md", "CONTRIBUTING.md", "docs/architecture.md"),
    *("docs/chat.md", "docs/clients.md", "docs/determinism.md", "docs/kubernetes.md", "docs/openai.md"),
    *("docs/operating.md", "docs/page.md", "docs/parity.md", "docs/routers.md", "docs/scaling.md"),
    "docs/upgrading-llama-cpp.md",
)

FRAGMENT = re.compile(
    r"(As|By|For|From|How|In|Of|That|What|Whatever|When|Where|Whether|Which|Who|Whoever|Whose|Why|With|Without)\b"
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
    r"(?<!\.)\btells?\b": "says, reports, shows",
    r"\bwhoever": "the user, the operator, the caller",
}
"""pattern → the house's words"""


def sources(*places: str) -> list[Path]:
    found = [file for place in places for file in ([ROOT / place] if "." in place else (ROOT / place).rglob("*.py"))]
    return sorted(found)


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for child in node.body:
                match child:
                    case ast.Expr(ast.Constant(str(text))):
                        yield child.lineno, text.strip()


@pytest.mark.parametrize("place", CLEAN)
def test_no_docstring_is_a_fragment(place: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for file in sources(place)
        if file.suffix == ".py"
        for line, text in docstrings(ast.parse(file.read_text()))
        if FRAGMENT.match(text)
    ]
    assert not found, "\n".join(["give these a subject and a verb:", *found])


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


def test_the_rules_find_what_they_forbid() -> None:
    """Positive control: without it a rule that matches nothing would pass for ever."""
    tree = ast.parse('"""Of each slot."""\nclass A:\n    """It is."""\n    b: int\n    """How many."""\n')
    assert [text for _, text in docstrings(tree) if FRAGMENT.match(text)] == ["Of each slot.", "How many."]
    assert re.search("|".join(PHRASES), "the caller is told")
