"""DRY: a penalty for each token that would carry on a repetition of the generated text.

Owns finding repetitions and the penalty's size. Knows nothing of rows. Pure; the step thread.
Source: p-e-w, "DRY: A modern repetition penalty that reliably prevents looping", text-generation-webui pull request
5677; without its sequence breakers. llama.cpp's llama_sampler_dry computes the same.
"""

from collections.abc import Sequence as Seq

import numpy as np

from worker.sampling.arrays import Reals

_HOPELESS = 1e100
"""Beyond any score, and its square is still a number: a long repetition makes a token hopeless, not impossible."""


def repetitions(tokens: Seq[int], shortest: int) -> dict[int, int]:
    """token → the most final tokens of `tokens` that also stand right before an earlier place of that token.

    Counts below `shortest` (at least 1) are left out. Takes time linear in len(tokens), whatever they are.
    Source: Gusfield's Z algorithm on the reversed tokens; only places that begin with the last token can match.
    """
    backwards = list(reversed(tokens))
    n_tokens = len(backwards)
    matched = [0] * n_tokens
    longest: dict[int, int] = {}
    begin = end = 0  # [begin, end) is the match found so far that reaches furthest
    for place in [place for place in range(1, n_tokens) if backwards[place] == backwards[0]]:
        length = matched[place - begin] if place < end else 0
        if place + length >= end:
            length = max(end - place, 0)
            while place + length < n_tokens and backwards[length] == backwards[place + length]:
                length += 1
            begin, end = place, place + length
        matched[place] = length
        if length >= shortest and length > longest.get(backwards[place - 1], 0):
            longest[backwards[place - 1]] = length
    return longest


def penalties(lengths: Reals, multiplier: float, base: float, allowed_length: int) -> Reals:
    """multiplier * base^(length - allowed_length), at most 1e100."""
    with np.errstate(over="ignore"):
        sizes: Reals = multiplier * base ** (lengths - allowed_length)
    return np.minimum(sizes, _HOPELESS)
