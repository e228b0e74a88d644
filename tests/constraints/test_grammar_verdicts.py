"""A GBNF grammar means to llguidance what it means to llama.cpp: the same characters may come, the same texts end."""

import ast
import random
import re
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from llama_cpp import llama_grammar
from llguidance import LLTokenizer

from tests.constraints.verdicts import OTHERS, Matcher, Sampler, check_walk, is_taken, token_of_character, tokenizer_of
from tests.llama.tiny import write_tiny
from tests.llama_source import grammars
from tests.on_cpu import loaded_on_cpu
from worker.constraints.gbnf import lark_of
from worker.llama.model import Model
from worker.wire.jobs import TokenId

LAW = settings(max_examples=300)


class Vocabulary(NamedTuple):
    model: Model
    tokenizer: LLTokenizer


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vocabulary]:
    path = write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", characters=OTHERS)
    with loaded_on_cpu(path) as model:
        yield Vocabulary(model, tokenizer_of(model))


def matcher_of(vocabulary: Vocabulary, gbnf: str) -> Matcher:
    def token_of(written: str) -> TokenId | None:
        return TokenId(int(written[2:-2]))

    return Matcher(vocabulary.tokenizer, lark_of(gbnf, token_of))


def check_walks(vocabulary: Vocabulary, gbnf: str, seeds: range, n_tokens: int = 60) -> None:
    for seed in seeds:
        with closing(Sampler(vocabulary.model, gbnf)) as sampler:
            check_walk(sampler, matcher_of(vocabulary, gbnf), n_tokens, random.Random(seed))


class Case(NamedTuple):
    """One `test_grammar(…)` of test-grammar-integration.cpp."""

    grammar: str
    taken: list[list[TokenId]]
    refused: list[list[TokenId]]


def _tokens(expression: str) -> list[TokenId]:
    """The tokens of C++ like `token(10) + "text"`."""
    tokens: list[TokenId] = []
    for number, text in re.findall(r'token\((\d+)\)|"((?:[^"\\]|\\.)*)"', expression):
        tokens += [TokenId(int(number))] if number else map(token_of_character, ast.literal_eval(f'"{text}"'))
    return tokens


def cases() -> list[Case]:
    source = next(path for path in grammars() if path.name == "test-grammar-integration.cpp").read_text()
    without_comments = re.sub(r"^\s*//.*$", "", source, flags=re.MULTILINE)
    texts = r'\s*\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\}'
    found = re.findall(rf'test_grammar\(\s*"[^"]*",\s*R"""\((.*?)\)""",{texts},{texts}', without_comments, re.DOTALL)
    return [
        Case(
            grammar,
            *(
                [_tokens(line) for line in re.split(r",\s*\n", part) if '"' in line or "token" in line]
                for part in lists
            ),
        )
        for grammar, *lists in found
    ]


def all_texts() -> list[str]:
    """Every grammar in llama.cpp's folder of examples, in its tests' programs, and in the binding."""
    texts = [getattr(llama_grammar, name) for name in dir(llama_grammar) if name.endswith("_GBNF")]
    for path in grammars():
        source = path.read_text()
        found = [source] if path.suffix == ".gbnf" else re.findall(r'R"""\((.*?)\)"""', source, re.DOTALL)
        texts += [text for text in found if "::=" in text]
    return sorted(set(texts))


@pytest.mark.model
def test_llama_cpps_own_cases_are_judged_alike(vocabulary: Vocabulary) -> None:
    found = cases()
    assert sum(len(case.taken) + len(case.refused) for case in found) > 100
    for case in found:
        for tokens in case.taken + case.refused:
            with closing(Sampler(vocabulary.model, case.grammar)) as sampler:
                assert is_taken(sampler, tokens) == (tokens in case.taken)
            assert is_taken(matcher_of(vocabulary, case.grammar), tokens) == (tokens in case.taken)


@pytest.mark.model
def test_llama_cpps_own_grammars_allow_the_same_characters_everywhere(vocabulary: Vocabulary) -> None:
    n_compared = 0
    for text in all_texts():
        try:
            Sampler(vocabulary.model, text).close()
        except ValueError:
            continue
        if re.search(r"\d000", text):
            # It has tokens beyond this vocabulary, or more repetitions than llama.cpp counts, which takes them for any.
            continue
        check_walks(vocabulary, text, range(2), n_tokens=40)
        n_compared += 1
    assert n_compared > 140


TERMINALS = ['"a"', '"ab"', "[ab]", "[^a]", r"[^a-c\n]", ".", '"é"', "[^é]", "[ぁ-ゟ]", r'"\x0a\u3001"']
TIMES = ["", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "{0}"]


def expressions(rules: list[str], depth: int) -> st.SearchStrategy[str]:
    """Right sides that use `rules`; `depth`: of parentheses."""
    items = st.sampled_from(TERMINALS + rules)
    if depth:
        items |= expressions(rules, depth - 1).map("({})".format)
    repeated = st.tuples(items, st.sampled_from(TIMES)).map("".join)
    sequences = st.lists(repeated, min_size=1, max_size=3).map(" ".join)
    # A part is seldom nothing: llama.cpp takes a repetition of what may be nothing for left recursion, and refuses it.
    alternatives = st.lists(sequences | sequences | sequences.map('"" {} []'.format), min_size=1, max_size=3)
    return st.tuples(st.sampled_from(["", "", "", " | "]), alternatives.map(" | ".join)).map("".join)


GRAMMARS = st.builds(
    'root ::= {}\nb ::= {}\n2-C ::= "x" ({}) | {}'.format,
    expressions(["b", "2-C"], 2),
    expressions(["2-C"], 1),
    # A rule may use itself after a character: llama.cpp refuses one that begins with itself.
    expressions(["root", "b", "2-C"], 0),
    expressions([], 1),
)


@pytest.mark.long
@LAW
@given(gbnf=GRAMMARS, seed=st.integers(0, 99))
def test_random_grammars_allow_the_same_characters_everywhere(vocabulary: Vocabulary, gbnf: str, seed: int) -> None:
    try:
        Sampler(vocabulary.model, gbnf).close()
    except ValueError:
        assume(False)
    check_walks(vocabulary, gbnf, range(seed, seed + 1), n_tokens=12)
