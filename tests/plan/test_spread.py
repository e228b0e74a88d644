"""Every layer lies in one place, the last ones on the GPUs, and nothing is lost between the places."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.test_memory import demand, info
from worker.model.gguf import Tensor
from worker.model.info import ModelInfo
from worker.plan.memory import Plan, graph_input_bytes, plan_of, planned_graph
from worker.plan.spread import InMain, Part, RepackedBytes, gpu_of_layers, layers_of, spread

EMBEDDING, NORM, OUTPUT, BLOCK = 1000, 10, 2000, 300


def layered(n_blocks: int = 4, *, has_output: bool = True) -> ModelInfo:
    """Blocks of a matrix of 200, another of 90 and a norm of 10 bytes."""
    names = {"token_embd.weight": EMBEDDING, "output_norm.weight": NORM}
    if has_output:
        names["output.weight"] = OUTPUT
    for block in range(n_blocks):
        names |= {f"blk.{block}.ffn_down.weight": 200, f"blk.{block}.attn_q.weight": 90, f"blk.{block}.norm.weight": 10}
    tensors = tuple(Tensor(name, (n_bytes,), "I8", n_bytes) for name, n_bytes in names.items())
    return replace(info(heads_kv=(2,) * n_blocks), tensors=tensors)


def parts_of(
    model: ModelInfo, n_gpu_layers: int, shares: tuple[float, ...] = (1.0,)
) -> tuple[Plan, Part, tuple[Part, ...]]:
    plan = plan_of(model, demand(), 1024)
    return plan, *spread(model, layers_of(model), demand(), plan, n_gpu_layers=n_gpu_layers, shares=shares)


# ── layers ───────────────────────────────────────────────────────────────────────────────────────


def test_tensors_are_counted_where_llama_cpp_has_them() -> None:
    layers = layers_of(layered())
    assert (layers.input.total_bytes, layers.n_layers) == (EMBEDDING, 5)
    assert layers.layer_bytes == (BLOCK, BLOCK, BLOCK, BLOCK, NORM + OUTPUT)
    assert layers.largest_bytes == (200, 200, 200, 200, OUTPUT)
    assert not layers.is_tied
    assert layers_of(layered(has_output=False)).is_tied


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("blk.2.attn_q.weight", 2),
        ("blk.9.nextn.weight", 4),
        ("rope_freqs.weight", 0),
        ("token_embd_norm.weight", 0),
        ("output_norm.weight", 4),
        ("what_is_new.weight", 4),
    ],
)
def test_a_tensor_belongs_to_the_layer_in_its_name(name: str, layer: int) -> None:
    model = replace(layered(), tensors=(Tensor(name, (7,), "I8", 7),))
    assert [at for at, n_bytes in enumerate(layers_of(model).layer_bytes) if n_bytes] == [layer]


# ── weights that the CPU lays out anew ───────────────────────────────────────────────────────────


def grown(tensor: Tensor) -> int:
    """Twice as large as in the file."""
    return 2 * tensor.n_bytes


def only(*names: str) -> RepackedBytes:
    return lambda tensor: tensor.n_bytes if tensor.name.endswith(names) else 0


def matrices(*, has_output: bool = True) -> ModelInfo:
    """The layered model, its matrices being ones."""
    model = layered(has_output=has_output)
    return replace(
        model,
        tensors=tuple(
            tensor if "norm" in tensor.name else replace(tensor, dims=(1, tensor.n_bytes)) for tensor in model.tensors
        ),
    )


def test_only_matrices_that_are_multiplied_are_repacked() -> None:
    found = layers_of(matrices(), grown).weights_in_main(0)
    n_norms = NORM + 4 * 10
    assert found == InMain(as_in_file=EMBEDDING + n_norms, repacked=2 * (OUTPUT + 4 * 290), left_in_file=OUTPUT + 1160)
    bias = Tensor("blk.0.ffn_down_exps.bias", (8, 8), "F32", 256)
    assert not layers_of(replace(matrices(), tensors=(bias,)), grown).weights_in_main(0).repacked


def test_weights_are_there_once_where_the_file_is_read_and_twice_in_part_where_it_is_mapped() -> None:
    few, many = only("attn_q.weight"), only("ffn_down.weight", "output.weight")
    model = matrices()
    mapped = layers_of(model, few).weights_in_main(0)
    assert (mapped.is_mapped, mapped.repacked) == (True, 4 * 90)
    assert mapped.total_bytes == model.weights_bytes + 4 * 90
    read = layers_of(model, many).weights_in_main(0)
    assert (read.is_mapped, read.repacked) == (False, OUTPUT + 4 * 200)
    assert read.total_bytes == model.weights_bytes


def test_an_embedding_that_is_the_output_too_is_there_once_more_repacked() -> None:
    """Its rows are still looked up in the file's layout."""
    model = matrices(has_output=False)
    found = layers_of(model, only("token_embd.weight")).weights_in_main(0)
    assert (found.is_mapped, found.repacked, found.left_in_file) == (True, EMBEDDING, 0)
    assert found.total_bytes == model.weights_bytes + EMBEDDING
    assert layers_of(matrices(), only("token_embd.weight")).weights_in_main(0).repacked == 0


@pytest.mark.parametrize("n_gpu_layers", range(6))
def test_layers_on_a_gpu_are_not_repacked(n_gpu_layers: int) -> None:
    model = matrices()
    plan = plan_of(model, demand(), 1024)
    layers = layers_of(model, grown)
    host, (gpu,) = spread(model, layers, demand(), plan, n_gpu_layers=n_gpu_layers, shares=(1.0,))
    found = layers.weights_in_main(n_gpu_layers)
    n_blocks = min(4, 5 - n_gpu_layers)
    assert host.weights_bytes == found.total_bytes
    assert found.repacked == 2 * (n_blocks * 290 + (OUTPUT if n_gpu_layers == 0 else 0))
    assert gpu.weights_bytes == (model.weights_bytes - EMBEDDING) - n_blocks * BLOCK - (not n_gpu_layers) * (
        NORM + OUTPUT
    )


@given(
    n_layers=st.integers(1, 100),
    n_gpu_layers=st.integers(0, 120),
    shares=st.lists(st.floats(0, 1000), min_size=1, max_size=8).filter(any),
)
def test_the_last_layers_are_on_gpus_in_order_and_as_their_shares_say(
    n_layers: int, n_gpu_layers: int, shares: list[float]
) -> None:
    owners = gpu_of_layers(n_layers, n_gpu_layers, shares)
    n_there = min(n_gpu_layers, n_layers)
    on_gpus = [owner for owner in owners if owner is not None]
    assert owners == (*[None] * (n_layers - n_there), *on_gpus)
    assert len(on_gpus) == n_there
    assert on_gpus == sorted(on_gpus)
    for gpu, share in enumerate(shares):
        assert abs(on_gpus.count(gpu) - n_there * share / sum(shares)) <= 1
        assert share or gpu not in on_gpus


# ── sums ─────────────────────────────────────────────────────────────────────────────────────────


@given(n_gpu_layers=st.integers(0, 7), shares=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_weights_and_cells_are_somewhere_once(n_gpu_layers: int, shares: list[int]) -> None:
    model = layered(n_blocks=6)
    plan, host, gpus = parts_of(model, n_gpu_layers, tuple(map(float, shares)))
    assert host.weights_bytes + sum(gpu.weights_bytes for gpu in gpus) == model.weights_bytes
    assert host.kv_bytes + sum(gpu.kv_bytes for gpu in gpus) == plan.kv_bytes


@given(n_gpu_layers=st.integers(0, 6))
def test_a_layer_more_on_the_gpu_is_a_layer_less_in_main_memory(n_gpu_layers: int) -> None:
    model = layered(n_blocks=6)
    _, host, (gpu,) = parts_of(model, n_gpu_layers)
    _, less, (more,) = parts_of(model, n_gpu_layers + 1)
    moved = more.weights_bytes - gpu.weights_bytes
    assert moved == host.weights_bytes - less.weights_bytes == layers_of(model).layer_bytes[6 - n_gpu_layers]
    assert more.kv_bytes - gpu.kv_bytes == host.kv_bytes - less.kv_bytes == (plan_kv(model) if n_gpu_layers else 0)


def plan_kv(model: ModelInfo) -> int:
    """Return the bytes of one layer's cells."""
    return plan_of(model, demand(), 1024).kv_bytes // model.block_count


def test_a_shared_embedding_lies_on_the_gpu_once_more() -> None:
    for has_output, output_bytes in ((True, NORM + OUTPUT), (False, NORM + EMBEDDING)):
        _, host, (gpu,) = parts_of(layered(has_output=has_output), 1)
        assert gpu.weights_bytes == output_bytes
        assert host.weights_bytes == EMBEDDING + 4 * BLOCK


def test_without_gpus_all_is_in_main_memory_and_as_planned() -> None:
    plan, host, gpus = parts_of(layered(), 0, ())
    assert (host, gpus) == (Part(layered().weights_bytes, plan.kv_bytes, plan.compute_bytes + plan.output_bytes), ())


def test_a_gpu_that_has_not_all_layers_borrows_the_largest_tensor_of_the_others() -> None:
    compute = [parts_of(layered(), n_gpu_layers)[2][0].compute_bytes for n_gpu_layers in range(6)]
    assert compute[0] == compute[4] == compute[5] + 200
    assert compute[5] == plan_of(layered(), demand(), 1024).compute_bytes


def test_gpus_that_have_all_layers_keep_four_copies_of_what_goes_in() -> None:
    plan, _, (first, second) = parts_of(layered(), 5, (1.0, 1.0))
    copy = graph_input_bytes(layered(), planned_graph(demand(), plan))
    assert first.compute_bytes == second.compute_bytes == plan.compute_bytes + 3 * copy
    _, _, (first, second) = parts_of(layered(), 5, (1.0, 0.0))
    assert (first.compute_bytes, second.total_bytes) == (plan.compute_bytes + 3 * copy, 0)


def test_gpus_with_a_part_of_each_matrix_are_no_pipeline() -> None:
    model, plan = layered(), plan_of(layered(), demand(), 1024)
    _, gpus = spread(model, layers_of(model), demand(), plan, n_gpu_layers=5, shares=(1.0, 1.0), has_rows_split=True)
    assert [gpu.compute_bytes for gpu in gpus] == [plan.compute_bytes] * 2


def test_blocks_that_guess_further_tokens_are_counted_and_not_loaded() -> None:
    """Multi-token prediction: llama.cpp loads such a block only when it is asked to."""
    whole, guessing = layered(3), replace(layered(4), n_mtp_blocks=1)
    assert layers_of(guessing).n_layers == 5
    assert layers_of(guessing).layer_bytes[3] == 0
    loaded = layers_of(guessing).weights_in_main(0).total_bytes
    assert loaded == whole.weights_bytes == guessing.weights_bytes - BLOCK
