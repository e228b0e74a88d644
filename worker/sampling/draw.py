"""The draw's randomness: one uniform number per token, a function of the job's seed and the position alone.

Counter-based, so nothing is carried from token to token: a job that is run again, preempted or moved beside
other jobs draws the same numbers. Pure; any thread.
"""

from numpy.random import Philox

_MANTISSA_BITS = 53


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), a multiple of 2^-53, that depends on (seed, position) only.

    `seed`: u64. `position`: how many tokens the job has generated, from 0.
    Source: Philox4x64-10 (Salmon et al., SC11) with key = seed and counter = position. The raw 64 bits are used
    because numpy promises them to stay the same across releases, which it does not for Generator.random.
    """
    bits: int = Philox(key=seed, counter=position).random_raw()
    return (bits >> (64 - _MANTISSA_BITS)) * 2.0**-_MANTISSA_BITS
