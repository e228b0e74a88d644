"""Limits that settings, the memory plan and the engine share, so that each of them may import them.

This module owns numbers and the arithmetic that follows from them alone. It is pure and imports nothing of the worker.
"""

MAX_DRAFTS = 31
"""The largest number of draft tokens in all slices of a step: with one stream's own token it is as wide as the widest
step that the warm-up measures. This many rows of logits are reserved beyond one for each slot. Prefill steps have no
drafts; they use these rows for the log-probabilities of prompts."""

MAX_HIDDEN_ROWS = 256
"""The number of a job's last tokens whose hidden rows are kept for the model's next-token head. The head sees no token
before these: what a job got from the prefix cache has no rows, and those of whole prompts would take more memory than
their KV cells."""

DECODE_MARGIN = 16
"""The number of cells that admission leaves free for each running sequence, so that a new job is not paused at once."""

MIN_CELLS = 1 + DECODE_MARGIN
"""The number of cells that the shortest job needs to be admitted while other jobs run."""


def max_jobs(n_cells: int) -> int:
    """Return how many jobs can ever run at once with n_cells. The first one is admitted even if cells are short."""
    return max(1, n_cells // MIN_CELLS)
