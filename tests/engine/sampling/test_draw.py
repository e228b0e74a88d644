"""The draw is a fixed function of (seed, position), and uniform."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Philox

from worker.engine.sampling.sample import uniform

GOLDEN = {
    (0, 0): "0x1.7a5d3204726c0p-7",
    (0, 1): "0x1.0137e64510730p-1",
    (1, 0): "0x1.36da89edd58a0p-2",
    (42, 0): "0x1.a3f102fa9ac51p-1",
    (42, 1): "0x1.78f6aa25870f8p-2",
    (42, 2**31): "0x1.f7fbd8240d2a0p-2",
    (2**64 - 1, 0): "0x1.e1290e2c6ef2cp-3",
    (2**64 - 1, 1): "0x1.6690e7025b05ep-2",
}
"""Made with numpy 2.4.6: `float.hex(uniform(seed, position))`. A change here changes every seeded answer."""


@pytest.mark.parametrize(("seed", "position"), GOLDEN)
def test_the_same_seed_and_position_give_the_same_number_in_every_release(seed: int, position: int) -> None:
    assert uniform(seed, position).hex() == GOLDEN[seed, position]


@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**63))
def test_lanes_are_the_words_of_one_block_as_numpy_computes_it(seed: int, position: int) -> None:
    words = Philox(key=seed, counter=position).random_raw(4)
    assert [uniform(seed, position, lane) for lane in range(4)] == [(int(word) >> 11) / 2**53 for word in words]
    assert uniform(seed, position) == uniform(seed, position, lane=0)
