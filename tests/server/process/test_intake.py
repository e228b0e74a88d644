"""The prompts that are refused, and the words of the refusals."""

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.server.process.intake import prompt_violation
from worker.wire.messages import Overflow

LAW = settings(max_examples=200)


def constraint(n_prompt: int, context_length: int, max_tokens_in: int = 0) -> str | None:
    violation = prompt_violation(n_prompt, context_length=context_length, max_tokens_in=max_tokens_in)
    return violation.constraint if violation is not None else None


@LAW
@given(n_prompt=st.integers(1, 60), context_length=st.integers(1, 60), max_tokens_in=st.integers(0, 60))
def test_a_prompt_is_accepted_when_it_leaves_room_for_one_token_and_keeps_the_workers_limit(
    n_prompt: int, context_length: int, max_tokens_in: int
) -> None:
    fits = n_prompt + 1 <= context_length and (max_tokens_in == 0 or n_prompt <= max_tokens_in)
    assert (constraint(n_prompt, context_length, max_tokens_in) is None) == fits


def test_the_context_is_full_one_token_before_its_length() -> None:
    assert constraint(99, 100) is None
    assert constraint(100, 100) == "context_length(100)"


def test_the_workers_own_limit_is_itself_allowed() -> None:
    assert constraint(50, 100, max_tokens_in=50) is None
    assert constraint(51, 100, max_tokens_in=50) == "max_tokens_in(50)"


def test_the_context_is_named_before_the_workers_own_limit() -> None:
    assert constraint(100, 100, max_tokens_in=50) == "context_length(100)"


@LAW
@given(n_prompt=st.integers(1, 60), context_length=st.integers(1, 60))
def test_a_prompt_that_nothing_follows_may_fill_the_context(n_prompt: int, context_length: int) -> None:
    violation = prompt_violation(n_prompt, context_length=context_length, max_tokens_in=0, is_answered=False)
    assert (violation is None) == (n_prompt <= context_length)


def test_a_prompt_without_tokens_is_refused() -> None:
    assert constraint(0, 100) == "non_empty"


def test_a_refusal_names_the_field_and_both_numbers() -> None:
    for n_prompt, max_tokens_in, limit in ((210, 0, "200"), (150, 120, "120")):
        violation = prompt_violation(n_prompt, context_length=200, max_tokens_in=max_tokens_in)
        assert violation is not None
        assert violation.field == "prompt"
        assert limit in violation.message
        assert f"prompt has {n_prompt} tokens" in violation.message
        assert violation.overflow == Overflow(n_prompt, int(limit)), "for doors with other words"
