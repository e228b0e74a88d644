"""Grammars on the real library. The tiny model has a token for each byte, so that any text can be asked about."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llama.bytewise import byte, constrain, is_text, submit
from tests.llama.hostile_grammars import FOREIGN, HOSTILE, MISTAKEN
from tests.llama.tiny import END, LONG_PIECE, TOKENS, write_tiny
from worker.engine.contract import TokenId, Violation
from worker.llama.grammar import MAX_COMPILED, Grammar, Grammars
from worker.llama.model import Model

ANY = r"root ::= [^\x00]*"
DIGITS = "root ::= [0-9]+"

A = f"<[{TOKENS.index('a')}]>"

FRAGMENTS = ['"a"', '""', "[a-c]", "[^x]", ".", "b", "root", "(", ")", "*", "+", "?", "{2}", "{1,3}", "{0,}", "|"]
FRAGMENTS += ["\nb ::= ", "\n", " ", "# b\n", A, "!<[4]>", "<b>", r'"\x41"', "é"]


# ── what is refused ──────────────────────────────────────────────────────────────────────────────


def test_no_grammar_ends_the_process(tmp_path: Path) -> None:
    """In a child, which would die, hang or be out of memory if one of them came through to llama.cpp's parser."""
    asked = {**HOSTILE, **MISTAKEN, **FOREIGN}
    command = [sys.executable, "-m", "tests.llama.hostile_grammars", str(write_tiny(tmp_path / "tiny.gguf"))]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    messages = dict(json.loads(line) for line in child.stdout.splitlines())
    assert child.returncode == 0, child.stderr[-1000:]
    assert messages.keys() == asked.keys()
    for name, (_, message) in asked.items():
        assert message in messages[name]
        assert messages[name].startswith("grammar: ")
    assert "error parsing grammar" not in child.stderr, "llama.cpp quotes the text there"


@settings(derandomize=True, deadline=None, max_examples=500)
@given(pieces=st.lists(st.sampled_from(FRAGMENTS), max_size=12))
def test_what_we_read_llama_cpp_reads(grammars: Grammars, pieces: list[str]) -> None:
    """Or says why in its log, for the one rule of its own that we leave to it."""
    answer = grammars.constrain(submit("root ::= " + "".join(pieces)))
    if isinstance(answer, Violation):
        assert "llama.cpp refuses it" not in answer.message or "left recursion" in answer.message
        return
    assert isinstance(answer, Grammar)
    answer.allowed()
    answer.close()


def test_a_job_without_a_grammar_has_no_constraint(grammars: Grammars) -> None:
    assert grammars.constrain(submit()) is None


# ── what is allowed ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("grammar", "texts", "others"),
    [
        (DIGITS, ["0", "42"], ["", "4a", "-1"]),
        ("root ::= [α-ω]{2,3}", ["αβ", "ωωω"], ["α", "ab", "αβγδ"]),
        ('root ::= "(" root ")" | "x"', ["x", "((x))"], ["((x)", "()"]),
        ('root ::= ("a" | "ab") "c"?', ["a", "ab", "abc"], ["b", "aa"]),
        ('root ::= "yes"\nroot ::= "no"', ["no"], ["yes"]),
        ("root ::= ", [""], ["a"]),
        (f"root ::= {A} [a-c]", [], ["a", "ab"]),
    ],
)
def test_a_grammar_takes_its_texts_and_no_others(
    grammars: Grammars, grammar: str, texts: list[str], others: list[str]
) -> None:
    for text in texts + others:
        assert is_text(constrain(grammars, grammar), text) == (text in texts), text


@pytest.mark.parametrize("grammar", [ANY, DIGITS, f"root ::= {A} [a-z]", f"root ::= !{A}+", "root ::= "])
def test_one_token_and_all_tokens_give_the_same_answer(bytewise: Model, grammars: Grammars, grammar: str) -> None:
    constraint = constrain(grammars, grammar)
    allowed = constraint.allowed()
    assert allowed.dtype == np.bool_
    assert [constraint.allows(token) for token in range(bytewise.n_vocab)] == allowed.tolist()
    constraint.close()


def test_control_tokens_and_nul_are_no_text(grammars: Grammars) -> None:
    """To llama.cpp the control token <s> is the three letters of its name, and NUL ends every piece."""
    constraint = constrain(grammars, ANY)
    assert not constraint.allows(TOKENS.index("<s>"))
    assert not constraint.allows(byte(0))
    assert constraint.allows(TOKENS.index(LONG_PIECE))
    constraint.close()


def test_half_a_character_may_come_where_its_other_half_can(grammars: Grammars) -> None:
    constraint = constrain(grammars, 'root ::= "é"')
    assert constraint.allows(byte(0xC3))
    assert not constraint.allows(byte(0xC4))
    assert not constraint.allows(byte(0xA9))
    constraint.accept(byte(0xC3))
    assert not constraint.allows(END)
    assert constraint.allows(byte(0xA9))
    constraint.close()


def test_an_end_token_is_allowed_exactly_when_the_text_is_complete(grammars: Grammars) -> None:
    constraint = constrain(grammars, 'root ::= "a" "b"?')
    ends = []
    for letter in b"ab":
        ends.append(constraint.allows(END))
        constraint.accept(byte(letter))
    assert [*ends, constraint.allows(END)] == [False, True, True]
    assert constraint.allowed().nonzero()[0].tolist() == [END]
    constraint.close()


# ── what would end the process ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("token", [byte(ord("x")), TokenId(END), TokenId(1)])
def test_a_forbidden_token_is_refused_and_changes_nothing(grammars: Grammars, token: TokenId) -> None:
    constraint = constrain(grammars, DIGITS)
    with pytest.raises(ValueError, match="not allowed"):
        constraint.accept(token)
    constraint.accept(byte(ord("1")))
    assert constraint.allows(END)
    constraint.close()


def test_a_grammar_that_runs_wild_is_stopped(grammars: Grammars) -> None:
    """Every letter doubles the ways in which the text can be read."""
    constraint = constrain(grammars, 'root ::= "a" root "b" | "a" root "c" | "d"')
    with pytest.raises(ValueError, match="too many ways"):  # noqa: PT012 - which of the calls it is depends on the machine
        for _ in range(30):
            constraint.accept(byte(ord("a")))
    with pytest.raises(ValueError, match="too many ways"):
        constraint.allowed()
    constraint.close()


def test_a_closed_grammar_refuses_and_closes_again(grammars: Grammars) -> None:
    constraint = constrain(grammars, DIGITS)
    constraint.close()
    constraint.close()
    for use in (constraint.allowed, lambda: constraint.allows(5), lambda: constraint.accept(TokenId(5))):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_jobs_have_copies_of_their_own(grammars: Grammars) -> None:
    one, other = constrain(grammars, 'root ::= "ab"'), constrain(grammars, 'root ::= "ab"')
    one.accept(byte(ord("a")))
    assert one.allows(byte(ord("b")))
    assert not other.allows(byte(ord("b")))
    one.close()
    assert other.allows(byte(ord("a")))
    other.close()


def test_a_copy_outlives_what_is_kept_for_the_next_job(tiny: Model) -> None:
    grammars = Grammars(tiny)
    first = constrain(grammars, 'root ::= "first"')
    for i in range(MAX_COMPILED + 5):
        constrain(grammars, f'root ::= "{i}"').close()
    again = constrain(grammars, 'root ::= "first"')
    grammars.close()
    grammars.close()
    assert is_text(first, "first")
    assert is_text(again, "first")


def test_a_grammar_asked_after_its_model_is_closed_refuses(tiny: Model) -> None:
    constraint = constrain(Grammars(tiny), DIGITS)
    tiny.close()
    with pytest.raises(ValueError, match="closed"):
        constraint.allows(byte(ord("1")))
    constraint.close()


# ── on the default model ─────────────────────────────────────────────────────────────────────────


@pytest.mark.model
@pytest.mark.usefixtures("default_model")
def test_the_default_models_special_tokens_are_never_text(model: Model) -> None:
    constraint = constrain(Grammars(model), ANY)
    allowed = constraint.allowed()
    constraint.close()
    special = [token for token in range(model.n_vocab) if model.piece(TokenId(token)) in (b"", b"\0")]
    assert len(special) > 10
    assert allowed[model.ends].all()
    assert not allowed[np.setdiff1d(special, model.ends)].any()
