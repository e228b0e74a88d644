"""Models with random weights: the shapes are real ones, the bytes are what ggml takes them for; of those with recurrent
state logits follow from every token before.
"""

import ctypes
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from llama_cpp import llama_cpp as capi
from numpy.typing import NDArray

from parity.llama.scoring import Scorer, Setup
from tests.on_cpu import loaded_on_cpu
from tools.bench.prompts import Prompts, common_words
from tools.made_architectures import (
    HYBRIDS,
    OTHERS,
    RECURRENT,
    SIZES,
    Kind,
    keys_of,
    small_vocabulary,
    tensors_of,
    type_of,
    write_kind,
)
from tools.made_model import BLOCKS, Q4_0, Q4_1, Q4_K, Q8_0, SHAPES, made_model, vocabulary
from worker.models.facts.info import read_info
from worker.models.plan.memory import has_state
from worker.models.upstream.architectures import ATTENTION_FREE
from worker.wire.jobs import TokenId

pytestmark = pytest.mark.model

State = ctypes.Array[ctypes.c_uint8]
PARTIAL = capi.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
N_TOKENS = 200
N_VOCAB = len(small_vocabulary()["tokenizer.ggml.tokens"])  # type: ignore[arg-type]  # a list of texts


TINY = SHAPES["tiny"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_model(tmp_path_factory.mktemp("made"), TINY)


@pytest.mark.parametrize(
    ("name", "n_weights"),
    [
        ("smollm2-135m", 134_515_008),
        ("tinyllama-1.1b", 1_100_048_384),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-2-7b", 6_738_415_616),
        ("mistral-7b", 7_241_732_096),
    ],
)
def test_a_shape_has_as_many_weights_as_the_published_checkpoint(name: str, n_weights: int) -> None:
    tensors = SHAPES[name].tensors()
    assert sum(prod(tensor.dims) for tensor in tensors) == n_weights
    matrices = [tensor for tensor in tensors if tensor.type_id == SHAPES[name].type_id]
    bits = {Q4_K: 4.5, Q4_1: 5}[SHAPES[name].type_id]
    assert sum(tensor.n_bytes for tensor in matrices) == sum(prod(tensor.dims) for tensor in matrices) * bits / 8


@pytest.mark.parametrize("type_id", [Q4_K, Q4_0, Q4_1, Q8_0])
def test_weights_lie_about_zero_and_keep_sizes_as_they_are(type_id: int, tmp_path: Path) -> None:
    """Each weight of a product with n inputs has the variance 1/n."""
    shape = replace(TINY, type_id=type_id)
    (_, block_bytes), output = BLOCKS[type_id], shape.tensors()[-1]
    data = np.fromfile(made_model(tmp_path, shape), np.uint8)[-output.n_bytes :].reshape(-1, block_bytes)
    weights = dequantize(data, GGMLQuantizationType(type_id))
    assert abs(float(weights.mean())) < 1e-3 / TINY.n_embd**0.5
    assert float(weights.std()) == pytest.approx(1 / TINY.n_embd**0.5, rel=0.01)


def test_a_whole_file_is_not_made_again_and_a_broken_one_and_another_seed_is(tiny: Path, tmp_path: Path) -> None:
    before = tiny.stat().st_mtime_ns
    assert made_model(tiny.parent, TINY).stat().st_mtime_ns == before
    whole = tiny.read_bytes()
    tiny.write_bytes(whole[:-1])
    assert made_model(tiny.parent, TINY).read_bytes() == whole
    assert [path.name for path in tiny.parent.iterdir()] == [tiny.name]
    assert made_model(tmp_path, TINY, seed=2).read_bytes() != whole


def test_every_word_of_the_prompts_is_one_token_and_logits_differ_between_tokens(tiny: Path) -> None:
    """A prompt has as many tokens as a real vocabulary would make of it."""
    with loaded_on_cpu(tiny) as model:
        assert [len(model.tokenize(word)) for word in common_words()] == [2] * len(common_words())
        assert len(model.tokenize(Prompts(1).of(63))) == 1 + 63 + 21
        rows = Scorer(model, Setup(), n_ctx=256, n_threads=1).logits(model.tokenize(Prompts(1).of(12)))
        assert np.isfinite(rows).all()
        assert (rows.std(axis=1) > 0.1).all()


@pytest.fixture(scope="module", params=[*RECURRENT, *HYBRIDS, *OTHERS], ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def path(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_kind(tmp_path_factory.mktemp(kind.name) / "made.gguf", kind)


def test_the_file_is_one_that_the_worker_serves(kind: Kind, path: Path) -> None:
    info = read_info(path)
    assert (info.architecture, info.vocabulary_remarks) == (kind.architecture, ())
    assert info.chat_template
    assert has_state(info)
    assert any(info.head_counts_kv) is (kind.architecture not in ATTENTION_FREE)
    assert info.file_bytes < 8 * 2**20


def test_logits_are_finite_the_same_again_and_the_first_token_has_a_say_in_the_last_row(path: Path) -> None:
    """More than the noise of rounding: a state that vanishes at once would leave nothing of it."""
    asked = tokens(seed=1)
    first, again = rows_of(path, asked), rows_of(path, asked)
    assert np.isfinite(first).all()
    assert (first.std(axis=1) > 0.1).all()
    assert (first == again).all()
    after = rows_of(path, [TokenId(asked[0] + 1), *asked[1:]])[-1]
    assert np.abs(first[-1] - after).max() > 1e-3 * first[-1].std()


def test_the_recurrent_state_has_a_say(path: Path) -> None:
    """After another prompt's state the same cells of attention give another row."""
    with loaded_on_cpu(path) as model:
        scorer = Scorer(model, Setup(), n_ctx=256, n_threads=1)
        scorer.logits(tokens(seed=2))
        strange = state_of(scorer)
        before = scorer.logits(tokens(seed=1))[-1]
        own = state_of(scorer)
        put_state(scorer, strange)
        altered = row_after(scorer, tokens(seed=1)[-1])
        scorer.logits(tokens(seed=1))
        put_state(scorer, own)
        expected = row_after(scorer, tokens(seed=1)[-1])
        assert np.isfinite(altered).all()
        assert np.abs(altered - expected).max() > 0.1 * before.std()


@pytest.mark.parametrize("kind", SIZES, ids=str)
def test_a_size_has_some_300_million_weights_and_a_vocabulary_of_words(kind: Kind) -> None:
    keys = keys_of(kind.architecture, has_experts=kind.has_experts, changes=kind.keys)
    assert kind.n_words
    tensors = tensors_of({**keys, **vocabulary(kind.n_words)})
    assert tensors.pop("output.weight") == tensors["token_embd.weight"] == (1024, kind.n_words)
    n_weights = sum(prod(dims) for dims in tensors.values())
    assert 280e6 < n_weights < 340e6
    in_blocks = [dims for name, dims in tensors.items() if type_of(name, dims, Q4_0) == Q4_0]
    assert sum(map(prod, in_blocks)) > 0.99 * n_weights


def test_an_architecture_that_is_unknown_has_the_librarys_reason() -> None:
    with pytest.raises(ValueError, match="unknown model architecture: 'nothing'"):
        tensors_of({**keys_of("nothing", has_experts=False), **vocabulary(10_000)})


def tokens(*, seed: int) -> list[TokenId]:
    return [TokenId(int(token)) for token in np.random.default_rng(seed).integers(5, 300, N_TOKENS)]


def rows_of(path: Path, asked: list[TokenId]) -> NDArray[np.float32]:
    with loaded_on_cpu(path) as model:
        return Scorer(model, Setup(), n_ctx=256, n_threads=1).logits(asked)


def state_of(scorer: Scorer) -> State:
    """The part of the sequence's memory that cannot be cut."""
    n_bytes = int(capi.llama_state_seq_get_size_ext(scorer.handle, 0, PARTIAL))
    state: State = (ctypes.c_uint8 * n_bytes)()
    assert capi.llama_state_seq_get_data_ext(scorer.handle, state, n_bytes, 0, PARTIAL) == n_bytes
    return state


def put_state(scorer: Scorer, state: State) -> None:
    assert capi.llama_state_seq_set_data_ext(scorer.handle, state, len(state), 0, PARTIAL) == len(state)


def row_after(scorer: Scorer, token: TokenId) -> NDArray[np.float32]:
    one = (capi.llama_token * 1)(token)
    assert capi.llama_decode(scorer.handle, capi.llama_batch_get_one(one, 1)) == 0
    return np.ctypeslib.as_array(capi.llama_get_logits_ith(scorer.handle, -1), (N_VOCAB,)).copy()
