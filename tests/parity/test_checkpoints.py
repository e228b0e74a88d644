"""The checkpoints level on the real model: it passes on the F32 copy, and every error is found where it is."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from numpy.typing import ArrayLike, NDArray

from parity.bounds import Bounds
from parity.capture import capture
from parity.levels.checkpoints import N_TOKENS, Expected, run
from parity.llama.scoring import Setup
from parity.naming import to_checkpoint_order
from parity.points import Activations
from parity.reference.model import Reference
from parity.report import Level
from parity.setups import opened
from tests.parity.made_activations import layer_points

pytestmark = pytest.mark.model

TEXT = (
    "The quiet harbour was full of boats, and 17 of them were painted blue; no one knew why."
    " In the morning the wind came from the south."
)
N_LAYERS, N_HEADS = 30, 9

N_THREADS = 1
"""Two would wait for each other wherever the machine has other work."""

Weights = NDArray[np.float32]
Fault = Callable[[Any], ArrayLike]


@pytest.fixture(scope="module")
def tokens(reference: Reference) -> list[int]:
    found = reference.tokenize(TEXT)[:N_TOKENS]
    assert len(found) == N_TOKENS
    return found


@pytest.fixture(scope="module")
def expected(reference: Reference, tokens: list[int]) -> Expected:
    [continuation] = reference.greedy([tokens], 8)
    rows = reference.logits([*tokens, *continuation[:-1]])[len(tokens) - 1 :]
    return Expected.of(tokens, reference.activations(tokens), continuation, rows)


def in_short(expected: Expected) -> Expected:
    """A continuation of one token, for those who fail before it."""
    return replace(expected, continuation=expected.continuation[:1], margins=expected.margins[:1])


def judged(path: Path, expected: Expected, bounds: Bounds) -> Level:
    return run(path, expected, bounds=bounds, n_threads=N_THREADS)


def test_the_f32_copy_is_the_reference_at_every_checkpoint(f32_copy: Path, expected: Expected, bounds: Bounds) -> None:
    level = judged(f32_copy, expected, bounds)
    assert level.verdict == "pass", level.summary
    assert level.summary.startswith(f"{len(layer_points(N_LAYERS))} points over {N_TOKENS} tokens")


def captured(path: Path, tokens: list[int], setup: Setup | None = None) -> Activations:
    with opened(path) as model:
        return capture(model, tokens, n_threads=N_THREADS, setup=setup or Setup())


def test_half_precision_memory_is_seen_where_it_rounds(f32_copy: Path, tokens: list[int]) -> None:
    found = captured(f32_copy, tokens, Setup(type_k="f16", type_v="f16"))
    for names in (("k_cache", "k_rope"), ("v_cache", "v_proj")):
        stored, whole = (next(v for p, v in found.items() if p.layer == 5 and p.name == name) for name in names)
        assert (stored == whole.astype(np.float16).astype(np.float32)).all()
        assert (stored != whole).any()


def test_flash_attention_has_no_scores_to_look_at(f32_copy: Path, tokens: list[int]) -> None:
    with pytest.raises(ValueError, match=r"0 tensors kq-0, not 1: .*without flash attention"):
        captured(f32_copy, tokens, Setup(flash_attn="on"))


class Workbench:
    """The F32 copy again, mapped so that its numbers can be changed where they lie, which takes less than another."""

    def __init__(self, f32_copy: Path, path: Path) -> None:
        shutil.copyfile(f32_copy, path)
        self.path = path
        self._reader = GGUFReader(path, "r+")

    def weights(self, name: str) -> Weights:
        """The numbers in the file."""
        [tensor] = [tensor for tensor in self._reader.tensors if tensor.name == name]
        assert tensor.data.dtype == np.float32
        place: Weights = tensor.data
        return place

    def metadata(self, key: str) -> NDArray[np.generic]:
        """The number in the file."""
        field = self._reader.fields[key]
        place: NDArray[np.generic] = field.parts[field.data[0]]
        return place


@pytest.fixture(scope="module")
def workbench(f32_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    made = Workbench(f32_copy, tmp_path_factory.mktemp("workbench") / "wrong.gguf")
    yield made
    made.path.unlink()


@contextmanager
def changed(place: NDArray[np.generic], wrong: ArrayLike) -> Iterator[None]:
    right = place.copy()
    place[...] = wrong
    try:
        yield
    finally:
        place[...] = right


def one_number_off(weights: Weights) -> Weights:
    wrong = weights.copy()
    wrong[17, 300] += 0.05
    return wrong


def one_percent_off(weights: Weights) -> Weights:
    return weights * np.float32(1.01)


def two_heads_swapped(weights: Weights) -> Weights:
    order = [0, 1, 3, 2, *range(4, N_HEADS)]
    return weights.reshape(N_HEADS, -1)[order].reshape(weights.shape)


def halves_of_heads_not_interleaved(weights: Weights) -> Weights:
    """The order of the checkpoint, which a converter has to change."""
    return to_checkpoint_order(weights, N_HEADS)


@pytest.mark.parametrize(
    ("name", "fault", "place"),
    [
        ("token_embd.weight", one_percent_off, "embedding (checkpoint 0)"),
        ("blk.0.attn_norm.weight", one_percent_off, "blk.0 attn_norm (checkpoint 1)"),
        ("blk.7.attn_q.weight", two_heads_swapped, "blk.7 q_proj (checkpoint 2)"),
        ("blk.20.attn_q.weight", halves_of_heads_not_interleaved, "blk.20 q_proj (checkpoint 2)"),
        ("blk.3.attn_v.weight", one_number_off, "blk.3 v_proj (checkpoint 2)"),
        ("blk.12.ffn_down.weight", one_percent_off, "blk.12 ffn_out (checkpoint 6)"),
        ("output_norm.weight", one_percent_off, "final_norm (checkpoint 8)"),
        ("llama.rope.freq_base", lambda _: 10_000.0, "blk.0 q_rope (checkpoint 1B)"),
        ("llama.attention.layer_norm_rms_epsilon", lambda _: 1e-6, "blk.0 attn_norm (checkpoint 1)"),
    ],
)
def test_a_wrong_number_is_found_where_it_is_used_first(
    *, workbench: Workbench, expected: Expected, bounds: Bounds, name: str, fault: Fault, place: str
) -> None:
    numbers = workbench.metadata(name) if name.startswith("llama.") else workbench.weights(name)
    with changed(numbers, fault(numbers)):
        level = judged(workbench.path, in_short(expected), bounds)
    assert level.verdict == "fail"
    assert level.summary.startswith(f"{place}, relative error")


def test_k_and_v_swapped_are_found_at_their_projection(
    workbench: Workbench, expected: Expected, bounds: Bounds
) -> None:
    k, v = workbench.weights("blk.9.attn_k.weight"), workbench.weights("blk.9.attn_v.weight")
    with changed(k, v.copy()), changed(v, k.copy()):
        level = judged(workbench.path, in_short(expected), bounds)
    assert level.summary.startswith("blk.9 k_proj (checkpoint 2), relative error")


def test_the_workbench_is_right_when_nothing_is_wrong(workbench: Workbench, expected: Expected, bounds: Bounds) -> None:
    """Each control above shows its own fault alone. This test comes after them."""
    assert judged(workbench.path, in_short(expected), bounds).verdict == "pass"


def one_position_later(reference: Reference, tokens: list[int]) -> Activations:
    """The activations of `tokens` after another one, as if they had been alone."""
    found = {}
    for point, values in reference.activations([tokens[0], *tokens]).items():
        found[point] = values[:, 1:, 1:] if point.name in ("scores", "probs") else values[1:]
    return found


def test_positions_that_are_off_by_one_are_found_at_rope(
    f32_copy: Path, reference: Reference, expected: Expected, tokens: list[int], bounds: Bounds
) -> None:
    later = replace(in_short(expected), activations=one_position_later(reference, tokens))
    level = judged(f32_copy, later, bounds)
    assert level.verdict == "fail"
    assert level.summary.startswith("blk.0 q_rope (checkpoint 1B), relative error")
