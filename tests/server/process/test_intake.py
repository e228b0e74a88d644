"""The prompts that are refused, and the words of the refusals."""

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.server.process.intake import prompt_violation
from worker.wire.messages import Overflow


@settings(max_examples=400)
@given(
    n_prompt=st.integers(0, 60),
    context_length=st.integers(1, 60),
    max_tokens_in=st.integers(0, 60),
    is_answered=st.booleans(),
)
def test_a_prompt_is_accepted_when_it_leaves_room_for_its_answer_and_keeps_the_workers_limit(
    n_prompt: int, context_length: int, max_tokens_in: int, *, is_answered: bool
) -> None:
    """The context is named before the worker's own limit, and both numbers are there for doors with other words."""
    violation = prompt_violation(
        n_prompt, context_length=context_length, max_tokens_in=max_tokens_in, is_answered=is_answered
    )
    found = None if violation is None else (violation.field, violation.constraint, violation.overflow)
    if n_prompt == 0:
        assert found == ("prompt", "non_empty", None)
    elif n_prompt + is_answered > context_length:
        assert found == ("prompt", f"context_length({context_length})", Overflow(n_prompt, context_length))
    elif 0 < max_tokens_in < n_prompt:
        assert found == ("prompt", f"max_tokens_in({max_tokens_in})", Overflow(n_prompt, max_tokens_in))
    else:
        assert found is None
    if violation is not None and violation.overflow is not None:
        assert f"prompt has {n_prompt} tokens" in violation.message
        assert str(violation.overflow.most) in violation.message
