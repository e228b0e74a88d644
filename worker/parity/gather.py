"""Which tokens are looked at, and what the reference says about them.

From the evaluation text and prompts to windows, and from windows to rows on disk. Refuses to know PyTorch: it is
handed a Reference.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from worker.errors import UsageError
from worker.parity.evidence import LONG, SHORT, FullLogits, Kind, Window

if TYPE_CHECKING:
    from worker.parity.reference.model import Reference

_KINDS: tuple[tuple[Kind, int], ...] = (("short", SHORT), ("long", LONG))
_LONGEST_PROMPT = 32


def windows_of(ids: Sequence[int], kind: Kind, length: int, bos: int | None) -> list[Window]:
    """`ids` in windows of `length`, what remains at the end left out; `bos` is one more token in front of each."""
    front = () if bos is None else (bos,)
    starts = range(0, len(ids) - length + 1, length)
    return [Window(kind, (*front, *ids[start : start + length])) for start in starts]


def plan_windows(
    reference: "Reference", text: str, prompts: Sequence[str], *, n_tokens: int = 4096, n_continued: int = 64
) -> list[Window]:
    """The first `n_tokens` tokens of `text` as short windows and again as long ones, then a continuation per prompt.

    Prompts are cut to the length of the shortest, at most 32 tokens, and continued greedily by `n_continued`.
    Raises: UsageError where the text has fewer tokens, or `n_tokens` would be no whole window.
    """
    ids = reference.tokenize(text)
    if len(ids) < n_tokens:
        raise UsageError(f"the text has {len(ids)} tokens in this model's vocabulary; {n_tokens} are needed")
    if n_tokens < SHORT:
        raise UsageError(f"{n_tokens} tokens are no window: at least {SHORT} are needed")
    bos = reference.facts.bos
    short, long = (windows_of(ids[:n_tokens], kind, length, bos) for kind, length in _KINDS)
    return [*short, *long, *_continuations(reference, prompts, n_continued)]


def gather(reference: "Reference", windows: Sequence[Window], folder: Path) -> FullLogits:
    """Every row of every window, computed one window at a time and kept in `folder`."""

    def rows(window: Window) -> NDArray[np.float32]:
        return reference.logits(window.tokens).astype(np.float32)

    return FullLogits.make(folder, windows, rows)


def _continuations(reference: "Reference", prompts: Sequence[str], n_continued: int) -> list[Window]:
    if not prompts:
        return []
    front = [] if reference.facts.bos is None else [reference.facts.bos]
    ids = [front + reference.tokenize(prompt) for prompt in prompts]
    n_prompt = min(_LONGEST_PROMPT, *map(len, ids))
    cut = [prompt[:n_prompt] for prompt in ids]
    continued = reference.greedy(cut, n_continued)
    return [Window("continuation", (*prompt, *more), n_prompt) for prompt, more in zip(cut, continued, strict=True)]
