"""Limits that settings, the memory plan and the engine must agree on, so that each of them may import them.

Owns numbers and the arithmetic that follows from them alone. Pure; imports nothing of the worker.
"""

MAX_DRAFTS = 31
"""How many draft tokens a step has at most, all its slices together: with one stream's own token it is as wide as the
widest step that the warm-up measures. So many rows of logits are reserved beyond one for each slot. Prefill steps have
no drafts; there they are for prompts' log-probabilities."""

DECODE_MARGIN = 16
"""How many cells admission leaves free for each running sequence, so that not every newcomer is paused at once."""

LEAST_CELLS = 1 + DECODE_MARGIN
"""How many cells the shortest job needs to be admitted beside others."""


def most_jobs(n_cells: int) -> int:
    """How many jobs can ever run at once over so many cells. The first is admitted into whatever there is."""
    return max(1, n_cells // LEAST_CELLS)
