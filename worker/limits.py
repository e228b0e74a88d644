"""Limits that settings, the memory plan and the engine must agree on, so that each of them may import them.

Owns numbers and the arithmetic that follows from them alone. Pure; imports nothing of the worker.
"""

MAX_DRAFTS = 31
"""The most draft tokens in a step, all its slices together: with one stream's own token the step is as wide as the
widest that the warm-up measures. As many rows of logits are reserved beyond one for each slot. Prefill steps have no
drafts and use these rows for prompts' log-probabilities."""

DECODE_MARGIN = 16
"""The number of cells that admission leaves free for each running sequence, so that not every new job pauses at
once."""

LEAST_CELLS = 1 + DECODE_MARGIN
"""The number of cells that the shortest job needs to be admitted while others run."""


def most_jobs(n_cells: int) -> int:
    """Return how many jobs can ever run at once over `n_cells`. The first is admitted however few there are."""
    return max(1, n_cells // LEAST_CELLS)
