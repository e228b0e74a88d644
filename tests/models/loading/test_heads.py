"""A model with a next-token head is loaded as planned, and the load says whether the head drafts, or why not."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.models.loading.test_load import configuration, inspected
from tools import made_architectures
from tools.made_architectures import Kind, write_kind
from worker.llama.library import open_library
from worker.models.loading.load import LoadedRunner, load_runner, placed
from worker.models.upstream.architectures import HEADS_OF_PLAIN_POSITIONS, WITH_A_HEAD

KINDS = [kind for kind in made_architectures.WITH_A_HEAD if kind.architecture in WITH_A_HEAD]
WITHOUT_SNAPSHOTS = made_architectures.KINDS["qwen3next-mtp"]
EACH = pytest.mark.parametrize("kind", KINDS, ids=str)
KV_KINDS = ("KV", "RS", "state")


@contextmanager
def loaded(path: Path, *, mtp: bool = True, **changes: object) -> Iterator[LoadedRunner]:
    sizes: dict[str, object] = {"ctx_size": 512, "parallel": 2, "ubatch_size": 64}
    found = load_runner(configuration(path, mtp=mtp, **sizes | changes), lambda _: None)
    try:
        yield found
    finally:
        found.runner.close()
        open_library().on_log = None


def reason(found: LoadedRunner) -> str:
    assert found.facts.drafts.next_token_head is not None
    assert found.drafting.draft is None
    assert found.facts.drafts.next_token_head.memory_bytes == 0
    return str(found.facts.drafts.next_token_head.off_because)


@EACH
def test_weights_and_cells_take_what_is_planned(kind: Kind, tmp_path: Path) -> None:
    """Within 4 %, and all of the model is among it."""
    path = write_kind(tmp_path / "made.gguf", kind)
    with loaded(path) as found:
        assert found.facts.drafts.next_token_head is not None
        assert found.facts.drafts.next_token_head.off_because is None
        assert found.drafting.draft is not None
        assert found.drafting.draft.row_costs
        sizes = found.runner.sizes + found.drafting.sizes
        plan = placed(configuration(path, mtp=True, ctx_size=512, parallel=2), found.info)
        taken_bytes = sum(each.size_bytes for each in sizes.buffers if each.kind.endswith(KV_KINDS))
        assert plan.need.kv_bytes == pytest.approx(taken_bytes, rel=0.04)
        assert plan.host.weights_bytes == pytest.approx(sizes.of_kind("model"), rel=0.04)
        assert found.facts.memory_bytes == sizes.total_bytes
        assert found.facts.drafts.next_token_head.memory_bytes == found.drafting.sizes.total_bytes > 0


@EACH
def test_without_the_flag_nothing_of_it_is_loaded(kind: Kind, tmp_path: Path) -> None:
    path = write_kind(tmp_path / "made.gguf", kind)
    with loaded(path, mtp=False) as found:
        assert reason(found) == "--mtp would load it"
        assert not found.drafting.sizes.buffers
        without_bytes = found.runner.sizes.of_kind("KV")
    with loaded(path) as with_it:
        assert (with_it.runner.sizes + with_it.drafting.sizes).of_kind("KV") > without_bytes
        assert with_it.runner.sizes.of_kind("KV") == without_bytes


def test_a_head_alone_is_a_reason_to_take_drafts_back(tmp_path: Path) -> None:
    """Then there are snapshots, and the costs of steps are measured."""
    path = write_kind(tmp_path / "made.gguf", made_architectures.KINDS["qwen35-mtp"])
    with loaded(path, prompt_lookup="off") as found:
        assert found.facts.drafts.off_because is None
        assert found.facts.drafts.snapshots
        assert found.facts.row_costs
    with loaded(path, prompt_lookup="off", mtp=False) as found:
        assert found.facts.drafts.off_because == "--prompt-lookup is off, and neither --draft-model nor --mtp drafts"
        assert not found.facts.drafts.snapshots


def test_where_it_cannot_draft_the_model_serves_without_and_says_why(tmp_path: Path) -> None:
    path = write_kind(tmp_path / "next.gguf", WITHOUT_SNAPSHOTS)
    with loaded(path) as found:
        assert reason(found) == (
            "llama.cpp keeps no snapshots of qwen3next's recurrent state, so wrong drafts could not be taken back"
        )
    [plain] = [kind for kind in KINDS if kind.architecture in HEADS_OF_PLAIN_POSITIONS]
    seeing = replace(plain, keys={**plain.keys, "rope.dimension_sections": [8, 8, 8, 8]})
    with loaded(write_kind(tmp_path / "seeing.gguf", seeing)) as found:
        assert reason(found).endswith("takes no positions of several numbers")


def test_a_file_without_a_head_says_nothing_of_it(tmp_path: Path) -> None:
    with loaded(write_kind(tmp_path / "made.gguf", made_architectures.KINDS["qwen35"])) as found:
        assert found.facts.drafts.next_token_head is None
        assert found.drafting.draft is None


@pytest.mark.parametrize("kind", [*KINDS, WITHOUT_SNAPSHOTS], ids=str)
def test_inspect_says_what_the_flag_would_do(kind: Kind, tmp_path: Path) -> None:
    path = write_kind(tmp_path / "made.gguf", kind)
    said = inspected(path).memory.next_token_head
    with loaded(path) as found:
        assert found.facts.drafts.next_token_head is not None
        assert said == (found.facts.drafts.next_token_head.off_because or "--mtp drafts with it")
