"""Each buffer is counted in one place, and a file is mapped unless too much would be there twice."""

from dataclasses import replace

import pytest

from tests.models.plan.rehearsed import MIB, info, layered
from worker.models.facts.gguf import Tensor
from worker.models.plan.buffers import Buffer, BufferSizes
from worker.models.plan.placement import InMain, Share, spread

FILE = layered(n_blocks=4)
"""4210 MiB, 1000 of them an embedding."""


def buffers(*sizes: tuple[str, str, int]) -> BufferSizes:
    return BufferSizes(tuple(Buffer(name, kind, n * MIB) for name, kind, n in sizes))


def part(weights: int = 0, kv: int = 0, compute: int = 0) -> Share:
    return Share(weights * MIB, kv * MIB, compute * MIB)


def test_without_gpus_all_is_in_main_memory() -> None:
    found = buffers(
        ("CPU", "model", 4210), ("CPU", "KV", 7), ("CPU", "RS", 2), ("CPU", "compute", 5), ("CPU", "output", 1)
    )
    in_main, host, gpus = spread(FILE, found, ())
    assert (host, gpus) == (part(4210, 9, 6), ())
    assert (in_main.as_in_file, in_main.repacked, in_main.is_mapped) == (4210 * MIB, 0, True)


def test_each_gpu_has_its_buffers_and_main_memory_those_that_gpus_read_there() -> None:
    found = buffers(
        *(("CUDA0", "model", 1200), ("CUDA1", "model", 2010), ("CUDA_Host", "model", 1000)),
        *(("CUDA0", "KV", 3), ("CUDA1", "KV", 4), ("CUDA0", "compute", 10), ("CUDA_Host", "compute", 2)),
    )
    in_main, host, gpus = spread(FILE, found, ("CUDA0", "CUDA1"))
    assert (host, gpus) == (part(1000, 0, 2), (part(1200, 3, 10), part(2010, 4)))
    assert in_main.as_in_file == 1000 * MIB


@pytest.mark.parametrize(("repacked", "is_mapped"), [(400, True), (500, False), (4000, False)])
def test_weights_are_there_once_where_the_file_is_read_and_twice_in_part_where_it_is_mapped(
    repacked: int, is_mapped: bool
) -> None:
    found = buffers(("CPU", "model", 4210 - repacked), ("CPU_REPACK", "model", repacked))
    in_main, host, _ = spread(FILE, found, ())
    assert in_main == InMain((4210 - repacked) * MIB, repacked * MIB, repacked * MIB)
    assert in_main.is_mapped is is_mapped
    assert host == part(4210 + (repacked if is_mapped else 0))


def test_an_embedding_that_is_the_output_too_is_there_once_more_repacked_and_leaves_nothing_in_the_file() -> None:
    tied = layered(n_blocks=4, has_output=False)
    found = buffers(("CPU", "model", 2210), ("CPU_REPACK", "model", 1000))
    in_main, host, _ = spread(tied, found, ())
    assert (in_main.left_in_file, in_main.is_mapped, host) == (0, True, part(3210))


def test_on_a_gpu_it_counts_as_no_part_of_the_file() -> None:
    tied = layered(n_blocks=4, has_output=False)
    found = buffers(("MTL0", "model", 10 + 1000 + 300), ("CPU", "model", 1000), ("CPU_REPACK", "model", 900))
    in_main, _, _ = spread(tied, found, ("MTL0",))
    assert in_main.left_in_file == 900 * MIB


def test_a_file_that_ggml_cannot_map_is_read() -> None:
    found = buffers(("CPU", "model", 4210))
    assert not spread(replace(FILE, alignment=8), found, ())[0].is_mapped


# ── what layers compute with ─────────────────────────────────────────────────────────────────────


def test_a_tied_embedding_is_one_of_the_tensors_of_layers_and_another_is_not() -> None:
    names = {tensor.name for tensor in FILE.layer_tensors}
    assert names == {tensor.name for tensor in FILE.tensors} - {"token_embd.weight"}
    tied = layered(n_blocks=4, has_output=False)
    assert tied.layer_tensors == tied.tensors
    assert (tied.tied_bytes, FILE.tied_bytes) == (1000 * MIB, 0)


def test_blocks_that_guess_further_tokens_are_no_part_of_it_unless_they_are_to_be_loaded() -> None:
    guessing = replace(info(), n_mtp_blocks=1, tensors=(Tensor("blk.3.nextn.weight", (8,), "F32", 32),))
    assert guessing.layer_tensors == ()
    assert len(replace(guessing, loads_heads=True).layer_tensors) == 1
