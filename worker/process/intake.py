"""What a prompt must satisfy once it is tokens. Pure; called on the intake thread."""

from worker.wire.messages import Violation


def prompt_violation(n_prompt: int, *, context_length: int, max_tokens_in: int) -> Violation | None:
    """Why a prompt of so many tokens is not taken: 1 ≤ tokens, tokens + 1 ≤ context_length, tokens ≤ max_tokens_in
    (0: no such limit). None: it fits.
    """
    if n_prompt == 0:
        return Violation("prompt", "non_empty", "prompt has no tokens for this model")
    if n_prompt + 1 > context_length:
        return Violation(
            "prompt",
            f"context_length({context_length})",
            f"prompt has {n_prompt} tokens and needs room for one more; the context is {context_length}",
        )
    if max_tokens_in and n_prompt > max_tokens_in:
        return Violation(
            "prompt",
            f"max_tokens_in({max_tokens_in})",
            f"prompt has {n_prompt} tokens; this worker takes at most {max_tokens_in}",
        )
    return None
