"""Answers as tests need them: tokens at given times."""

from collections.abc import Sequence

from tools.bench.answers import Answer


def answer(arrivals_s: Sequence[float], *, sent_s: float = 0.0, n_tokens: int | None = None) -> Answer:
    """Ends with its last token."""
    n = len(arrivals_s) if n_tokens is None else n_tokens
    return Answer(sent_s=sent_s, arrivals_s=tuple(arrivals_s), ended_s=arrivals_s[-1], n_tokens=n)


def steady(n_tokens: int, per_s: float, *, begun_s: float = 0.0, ttft_s: float = 0.0) -> Answer:
    """An answer of n tokens at an even pace."""
    first_s = begun_s + ttft_s
    return answer([first_s + number / per_s for number in range(n_tokens)], sent_s=begun_s)
