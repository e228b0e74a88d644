"""What a prompt must satisfy once it is tokens. Pure; called on the intake thread."""

from collections.abc import Sequence as Seq

from worker.engine.contract import Accepted, Refused, Submit, TokenId


def examine(submit: Submit, prompt: Seq[TokenId], *, context_length: int, max_tokens_in: int) -> Accepted | Refused:
    """Whether the prompt fits: 1 ≤ tokens, tokens + 1 ≤ context_length, tokens ≤ max_tokens_in (0: no such limit)."""
    n_prompt = len(prompt)
    if n_prompt == 0:
        return Refused(job=submit.job, constraint="non_empty", message="prompt has no tokens for this model")
    if n_prompt + 1 > context_length:
        return Refused(
            job=submit.job,
            constraint=f"context_length({context_length})",
            message=f"prompt has {n_prompt} tokens and needs room for one more; the context is {context_length}",
        )
    if max_tokens_in and n_prompt > max_tokens_in:
        return Refused(
            job=submit.job,
            constraint=f"max_tokens_in({max_tokens_in})",
            message=f"prompt has {n_prompt} tokens; this worker takes at most {max_tokens_in}",
        )
    return Accepted(job=submit.job, prompt_tokens=n_prompt)
