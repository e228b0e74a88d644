"""Which prompts are refused, and in which words."""

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.contract import Accepted, JobKey, Refused, Sampling, Submit, TokenId
from worker.engine.intake import examine

LAW = settings(derandomize=True, deadline=None, max_examples=200)


def examined(n_prompt: int, context_length: int, max_tokens_in: int = 0) -> Accepted | Refused:
    submit = Submit(job=JobKey(5), prompt="the secret text", max_tokens=3, sampling=Sampling(seed=0))
    prompt = [TokenId(9)] * n_prompt
    return examine(submit, prompt, context_length=context_length, max_tokens_in=max_tokens_in)


def constraint(answer: Accepted | Refused) -> str | None:
    return answer.constraint if isinstance(answer, Refused) else None


@LAW
@given(n_prompt=st.integers(1, 60), context_length=st.integers(1, 60), max_tokens_in=st.integers(0, 60))
def test_a_prompt_is_accepted_when_it_leaves_room_for_one_token_and_keeps_the_workers_limit(
    n_prompt: int, context_length: int, max_tokens_in: int
) -> None:
    fits = n_prompt + 1 <= context_length and (max_tokens_in == 0 or n_prompt <= max_tokens_in)
    answer = examined(n_prompt, context_length, max_tokens_in)
    assert (answer == Accepted(job=JobKey(5), prompt_tokens=n_prompt)) == fits
    assert isinstance(answer, Refused) != fits


def test_the_context_is_full_one_token_before_its_length() -> None:
    assert constraint(examined(99, 100)) is None
    assert constraint(examined(100, 100)) == "context_length(100)"


def test_the_workers_own_limit_is_itself_allowed() -> None:
    assert constraint(examined(50, 100, max_tokens_in=50)) is None
    assert constraint(examined(51, 100, max_tokens_in=50)) == "max_tokens_in(50)"


def test_the_context_is_named_before_the_workers_own_limit() -> None:
    assert constraint(examined(100, 100, max_tokens_in=50)) == "context_length(100)"


def test_a_prompt_without_tokens_is_refused() -> None:
    assert constraint(examined(0, 100)) == "non_empty"


def test_a_refusal_names_the_job_and_both_numbers_and_never_the_prompt() -> None:
    for answer, limit in ((examined(210, 200), "200"), (examined(150, 200, max_tokens_in=120), "120")):
        assert isinstance(answer, Refused)
        assert answer.job == 5
        assert limit in answer.message
        assert "prompt has 210 tokens" in answer.message or "prompt has 150 tokens" in answer.message
        assert "secret" not in answer.message
