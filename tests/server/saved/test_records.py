"""A record is trusted as it was made, and never otherwise."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.server.saved.records import CELLS, CHECKPOINT, Untrusted, binding_of, code_of, read_record, record_of

KEY, BINDING = b"k" * 32, binding_of(b"a model", b"its settings")
TOKENS = [7, 1, 2**31 - 1, 0, 5]
STATE = bytes(range(200))


def made(key: bytes = KEY, binding: bytes = BINDING, kind: int = CELLS) -> bytes:
    return b"".join(record_of(TOKENS, STATE, key=key, binding=binding, kind=kind))


KINDS = {kind: made(kind=kind) for kind in (CELLS, CHECKPOINT)}
WHOLE = KINDS[CELLS]
N = len(WHOLE)
N_MUTANTS = 10_000


@given(
    tokens=st.lists(st.integers(0, 2**31 - 1), max_size=9), state=st.binary(max_size=300), key=st.binary(max_size=64)
)
def test_a_record_is_read_as_it_was_made(tokens: list[int], state: bytes, key: bytes) -> None:
    parts = record_of(tokens, state, key=key, binding=BINDING)
    whole = b"".join(parts)
    record = read_record(whole, key=key, binding=BINDING)
    assert (record.tokens, bytes(record.state)) == (tokens, state)
    assert code_of(whole) == parts[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_says_whether_it_is_of_cells_or_a_recurrent_state(kind: int) -> None:
    assert read_record(KINDS[kind], key=KEY, binding=BINDING).kind == kind


def flipped(chance: random.Random) -> bytes:
    mutant = bytearray(WHOLE)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        mutant[chance.randrange(len(mutant))] ^= 1 << chance.randrange(8)
    return bytes(mutant)


def with_another_head(chance: random.Random) -> bytes:
    """Return the head of a record with other tokens, a shorter or a longer state, or of another binding."""
    other = b"".join(
        record_of(
            chance.choices(TOKENS, k=chance.randrange(8)),
            chance.randbytes(chance.randrange(300)),
            key=KEY,
            binding=chance.choice((BINDING, binding_of(b"another model"))),
        )
    )
    n_head = chance.randrange(8, 57)
    return other[:n_head] + WHOLE[n_head:]


def lengthened(chance: random.Random) -> bytes:
    at = chance.choice((0, len(WHOLE), chance.randrange(len(WHOLE))))
    return WHOLE[:at] + chance.randbytes(chance.randrange(1, 64)) + WHOLE[at:]


def with_parts_in_place_of_others(chance: random.Random) -> bytes:
    n, at, source = chance.randrange(1, 8), chance.randrange(N - 8), chance.randrange(N - 8)
    return WHOLE[:at] + WHOLE[source : source + n] + WHOLE[at + n :]


MUTATIONS: tuple[Callable[[random.Random], bytes], ...] = (
    *(flipped, lengthened, with_another_head, with_parts_in_place_of_others),
    lambda chance: WHOLE[: chance.randrange(N)],
    lambda chance: WHOLE[chance.randrange(1, N) :],
    lambda chance: chance.randbytes(chance.randrange(2 * N)),
    lambda chance: made(chance.randbytes(32), BINDING),
    lambda chance: made(KEY, chance.randbytes(32)),
    # The state of a sequence that says to be its cells, or the other way round.
    lambda chance: chance.choice((KINDS[CHECKPOINT][:48] + WHOLE[48:], WHOLE[:-32] + KINDS[CHECKPOINT][-32:])),
)


def test_of_ten_thousand_mutants_none_is_trusted() -> None:
    chance, n_tried = random.Random(1), 0
    while n_tried < N_MUTANTS:
        mutant = chance.choice(MUTATIONS)(chance)
        if mutant != WHOLE:
            n_tried += 1
            with pytest.raises(Untrusted):
                read_record(mutant, key=KEY, binding=BINDING)


def test_every_single_bit_counts() -> None:
    for bit in range(8 * len(WHOLE)):
        mutant = bytearray(WHOLE)
        mutant[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Untrusted):
            read_record(bytes(mutant), key=KEY, binding=BINDING)


@pytest.mark.parametrize(
    ("key", "binding", "reason"),
    [(b"j" * 32, BINDING, "another key"), (KEY, binding_of(b"a model", b"others"), "another model or build")],
)
def test_the_reason_says_whose_it_is(key: bytes, binding: bytes, reason: str) -> None:
    with pytest.raises(Untrusted, match=reason):
        read_record(WHOLE, key=key, binding=binding)


def test_facts_that_run_together_are_others() -> None:
    assert len({binding_of(b"ab", b"c"), binding_of(b"a", b"bc"), binding_of(b"abc"), binding_of(b"abc", b"")}) == 4
