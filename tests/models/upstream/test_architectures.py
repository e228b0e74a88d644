"""Our lists of architectures say what the library says of a model that is made for each of them."""

import re
from functools import cache
from typing import Any

import pytest

from tests.llama_source import source
from tests.models.upstream.every_architecture import architectures, reported
from worker.models.upstream.architectures import (
    ATTENTION_FREE,
    COPYING_EACH_SNAPSHOT,
    DIFFUSERS,
    EMBEDDERS,
    ENCODERS,
    HEADS_OF_PLAIN_POSITIONS,
    HYBRIDS,
    HYBRIDS_OF_SEVERAL_PARTS,
    NEEDED_BY_A_HEAD,
    OF_SEVERAL_PARTS,
    OTHER_SHAPES,
    ROWS_OF_OUTPUTS_ALONE,
    WINDOW_PATTERNS,
    WINDOWS_FLAGGED_IN_THE_FILE,
    WITH_A_HEAD,
    WITH_SNAPSHOTS,
)

pytestmark = pytest.mark.model

PROGRAM = "tests.models.upstream.architecture_words"

WITH_WINDOWS = {*WINDOW_PATTERNS, *WINDOWS_FLAGGED_IN_THE_FILE}

WINDOWS_BESIDE_AN_INDEX = {"dots3note"}
"""An architecture with windows whose memory cannot be cut in any case."""

INDEXED_BY_A_KEY = {"qwen4exp"}
"""An architecture with an index where a key asks for one."""

NOT_MADE = {
    *("bert", "clip", "dflash", "eagle3", "gemma4-assistant", "gptj", "jina-bert-v2", "jina-bert-v3", "nomic-bert"),
    *("nomic-bert-moe", "t5", "t5encoder", "wavtokenizer-dec"),
}
"""Architectures that want keys or tokens that the made models lack. All of them are refused."""


@cache
def memories() -> dict[str, Any]:
    return reported(PROGRAM, "memory", architectures().values())


@cache
def windows() -> dict[str, Any]:
    """The length of each architecture's window: of a dense model or, if there is none, of one with experts."""
    dense = reported(PROGRAM, "dense", architectures().values())
    return dense | reported(PROGRAM, "experts", [name for name, window in dense.items() if window is None])


def test_the_library_knows_the_architectures_of_its_source() -> None:
    assert len(architectures()) > 100
    assert {name for name, memory in memories().items() if memory is None} == {"clip", "gptj"}


def test_the_lists_of_recurrent_and_hybrid_architectures_are_the_librarys() -> None:
    known = {name: memory for name, memory in memories().items() if memory is not None}
    assert {name for name, (is_recurrent, _) in known.items() if is_recurrent} == set(ATTENTION_FREE)
    assert {name for name, (_, is_hybrid) in known.items() if is_hybrid} == set(HYBRIDS)


def test_the_architectures_with_windows_are_those_that_the_library_gives_one() -> None:
    found = {name for name, window in windows().items() if window}
    assert found - {*EMBEDDERS} - WINDOWS_BESIDE_AN_INDEX == WITH_WINDOWS


def test_a_model_is_made_of_every_other_architecture() -> None:
    """A new one shows here, and its lists are to be looked at in llama.cpp's source."""
    assert {name for name, window in windows().items() if window is None} == NOT_MADE <= set(OTHER_SHAPES)


def test_the_memories_of_several_parts_are_those_that_the_library_makes_next_to_cells() -> None:
    """The library does not report them, so its source does: an index beside the cells is a memory of its own kind."""
    body = source("llama-model.cpp").split("llama_memory_i * llama_model::create_memory", 1)[1].split("\n}\n", 1)[0]
    cases = re.split(r"\} break;\n|\n        default:\n", body)
    indexed = {
        architectures()[name]
        for case in cases
        if re.search(r"new llama_(kv_cache_(msa|dsa\w*|dsv4)|memory_hybrid_idx)\(", case)
        for name in re.findall(r"case (LLM_ARCH_\w+):", case)
    }
    assert indexed - set(HYBRIDS) == set(OF_SEVERAL_PARTS)
    assert indexed & set(HYBRIDS) == set(HYBRIDS_OF_SEVERAL_PARTS) - INDEXED_BY_A_KEY


def test_what_is_refused_has_no_memory_an_encoder_or_diffusion_by_the_librarys_source() -> None:
    """Others generate nothing either, and the library does not say so: they are the rest of our lists."""
    without_memory = named_in("llama-model.cpp", "llama_memory_i * llama_model::create_memory", until="res = nullptr")
    assert without_memory <= set(OTHER_SHAPES)
    assert {*EMBEDDERS, *DIFFUSERS} - without_memory == {"llama-embed"}
    assert named_in("llama-arch.cpp", "bool llm_arch_is_diffusion") == set(DIFFUSERS)
    with_encoder = named_in("llama-model.cpp", "bool llama_model_has_encoder")
    assert set(ENCODERS) <= with_encoder <= set(OTHER_SHAPES)


def test_the_hybrids_with_snapshots_are_those_of_the_librarys_source() -> None:
    """The number that a context reports is compared in tests/models/loading/test_architecture_abilities.py."""
    assert named_in("llama-arch.cpp", "bool llm_arch_supports_rs_rollback") == set(WITH_SNAPSHOTS) <= set(HYBRIDS)


def test_those_that_copy_each_snapshot_in_every_step_are_those_that_call_its_function() -> None:
    calling = {name for name in WITH_SNAPSHOTS if "= build_conv_state(" in source(f"{file_of(name)}.cpp")}
    assert calling == set(COPYING_EACH_SNAPSHOT)


def test_heads_are_of_architectures_whose_source_has_a_graph_for_them() -> None:
    graphs = {name: head_graph(name) for name in WITH_A_HEAD}
    for name, graph in graphs.items():
        needed = {f"nextn.{each}.weight" for each in re.findall(r"GGML_ASSERT\(layer\.nextn\.(\w+)", graph)}
        assert needed <= set(NEEDED_BY_A_HEAD), name
    turned = {name for name, graph in graphs.items() if "ggml_rope_multi" not in graph}
    several = {name for name in WITH_A_HEAD if "ggml_rope_multi" in source(f"{file_of(name)}.cpp")}
    assert turned & several == set(HEADS_OF_PLAIN_POSITIONS)


def test_hidden_rows_are_asked_for_so_that_the_model_s_graph_stays_as_it_is() -> None:
    """Some graphs crop the last layer to the wanted rows unless all hidden ones are, and some only if few are."""
    cropping = {
        name for name in WITH_A_HEAD if "(!cparams.embeddings_nextn || cparams." in source(f"{file_of(name)}.cpp")
    }
    assert cropping == set(ROWS_OF_OUTPUTS_ALONE)
    for name in set(WITH_A_HEAD) - cropping:
        assert "inp_out_ids && cparams.embeddings_nextn_masked" in source(f"{file_of(name)}.cpp")


def head_graph(name: str) -> str:
    """The source of the graph of an architecture's head."""
    begin = re.split(r"\n\w+::graph_mtp::graph_mtp\(", source(f"{file_of(name)}.cpp"))[1]
    return begin.split("\n}\n", 1)[0]


def file_of(name: str) -> str:
    others = {"lfm2moe": "lfm2", "nemotron_h": "nemotron-h", "nemotron_h_moe": "nemotron-h"}
    return {**others, "glm4moe": "glm4-moe", "hy_v3": "hy-v3"}.get(name, name)


def named_in(file: str, function: str, until: str = "\n}\n") -> set[str]:
    """The architectures that a function of the source names."""
    body = source(file).split(function, 1)[1].split(until, 1)[0]
    return {architectures()[name] for name in re.findall(r"case (LLM_ARCH_\w+):", body)}
