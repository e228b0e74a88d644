"""Answers written down instead of asked for."""

from collections.abc import Mapping, Sequence

from client.execute import Answer, Drawn, Top


def row(token: int, logprobs: Mapping[int, float] | None = None) -> Drawn:
    """A drawn token and what its row lists, best first; by default the token alone."""
    listed = {token: -0.1} if logprobs is None else logprobs
    return Drawn(token, listed.get(token, -9.0), tuple(Top(*pair) for pair in listed.items()))


def answer(
    rows: Sequence[Drawn],
    *,
    stop_reason: str = "MAX_TOKENS",
    seed: int | None = 0,
    n_sampled: int | None = None,
    job_id: str = "job",
) -> Answer:
    """A job that came to its end."""
    n = len(rows) if n_sampled is None else n_sampled
    return Answer(job_id, seed, tuple(rows), "".join(f"<{row.id}>" for row in rows), stop_reason, n, "", 1)
