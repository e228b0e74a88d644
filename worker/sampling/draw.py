"""The draw's randomness: uniform numbers that are functions of the job's seed, the position and the lane alone.

Counter-based, so nothing is carried from token to token: a job that is run again, preempted or moved beside
other jobs draws the same numbers. Pure; any thread.
"""

_MANTISSA_BITS = 53
_WORD_BITS = 64
_WORD = 2**_WORD_BITS - 1
_ROUNDS = 10
_MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_KEY_STEPS = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B

TOKEN_LANE, XTC_LANE = 0, 2
"""The lane of the number that decides the token, and of the one that decides whether XTC acts."""


def uniform(seed: int, position: int, lane: int = TOKEN_LANE) -> float:
    """A number in [0, 1), a multiple of 2^-53, that depends on (seed, position, lane) only.

    `seed`: u64. `position`: how many tokens the job has generated, from 0. `lane`: 0..3, independent of each other.
    Source: Philox4x64-10 (Salmon et al., SC11) with key = seed and counter = position + 1, one word per lane; these are
    the words of numpy.random.Philox(key=seed, counter=position), which reads the system's entropy each time it is made.
    """
    return (_block(seed, position + 1)[lane] >> (_WORD_BITS - _MANTISSA_BITS)) * 2.0**-_MANTISSA_BITS


def _block(key: int, counter: int) -> tuple[int, int, int, int]:
    """The four 64-bit words of Philox4x64-10 for a key and a counter below 2^64."""
    multiplier_a, multiplier_b = _MULTIPLIERS
    step_a, step_b = _KEY_STEPS
    key_a, key_b = key, 0
    a, b, c, d = counter, 0, 0, 0
    for _ in range(_ROUNDS):
        product_a, product_b = multiplier_a * a, multiplier_b * c
        a, b = (product_b >> _WORD_BITS) ^ b ^ key_a, product_b & _WORD
        c, d = (product_a >> _WORD_BITS) ^ d ^ key_b, product_a & _WORD
        key_a, key_b = (key_a + step_a) & _WORD, (key_b + step_b) & _WORD
    return a, b, c, d
