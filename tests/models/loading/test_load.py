"""The whole composition, on the real model and on a tiny one."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.formats.writing import FORMATS
from tests.llama.conftest import GREEDY, MakeContext
from tests.llama.random_models import HYBRID, PLAIN, RECURRENT, SLIDING, Kind, write_random
from tests.llama.tiny import write_tiny
from tests.on_cpu import loaded_on_cpu
from tests.server.front.rehearsal import FACTS
from worker.commands.inspect_gguf import Inspection, inspection_of
from worker.config.engine_settings import Configure, SwaFull
from worker.engine.backend import Read
from worker.engine.channels import CONTENT, Channel
from worker.engine.families import marks_among
from worker.engine.prefill_budget import MIN_CHUNK
from worker.engine.step import Slice, Step
from worker.errors import BadModelFile, InsufficientMemory, ModelLoadFailed
from worker.host import available_memory_bytes
from worker.llama.library import LogLine, open_library
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.models.facts.info import read_info
from worker.models.loading.contexts import check_same_vocabulary
from worker.models.loading.load import enders_of, load_model, load_runner
from worker.models.loading.places import places_of, to_stderr
from worker.models.plan.abilities import MAX_SNAPSHOTS
from worker.models.upstream.wording import FALSE_ALARM
from worker.server.front.state import LIBRARY_LINES
from worker.wire.encoding import encode_json
from worker.wire.jobs import SlotId, TokenId
from worker.wire.load import Offload


def inspected(path: Path) -> Inspection:
    """The inspection that `inspect` shows."""
    free = available_memory_bytes()
    return inspection_of(read_info(path), free, lambda config: places_of(config, free, is_estimate=True).served)


def configuration(path: Path, **changes: object) -> Configure:
    facts: dict[str, object] = {
        "device": "cpu",
        "ctx_size": 700,
        "parallel": 2,
        "ubatch_size": 64,
        "threads": 1,
        "threads_batch": 1,
        "cache_type_k": "f16",
    }
    return Configure(model_path=str(path), **{**facts, **changes})  # type: ignore[arg-type]  # mixed on purpose


@pytest.mark.model
def test_a_model_is_loaded_measured_and_empty(default_model: Path, model: Model, make_context: MakeContext) -> None:
    lines: list[LogLine] = []
    percents: list[int] = []
    try:
        loaded = load_runner(configuration(default_model), percents.append, lines.append)
    finally:
        open_library().on_log = None
    facts, runner = loaded.facts, loaded.runner
    info = read_info(default_model)
    assert (facts.name, facts.quant_kind, facts.vocab_size) == (info.name, info.quant_kind, info.vocab_size)
    assert (facts.n_cells, facts.context_length, facts.parallel) == (700, 700, 2)
    assert (facts.backend, facts.device_index, facts.memory_architecture, facts.resident) == ("cpu", 0, "host", True)
    assert facts.offload == Offload(gpu_layers=0, layers_total=info.block_count + 1), "and all as planned"
    assert facts.prefill_chunk in (16, 32, 64)
    assert percents[-1] == 100
    assert any("buffer size" in line.text for line in lines)
    # This is the weights and 768 cells (700 padded) of 23,040 bytes, and some compute buffers.
    min_bytes = info.weights_bytes + 768 * 23_040
    assert min_bytes < facts.memory_bytes < min_bytes + 64 * 2**20
    assert runner.kv.n_cells_used == 0
    # The warm-up changes no answer: bit for bit what a context gives that never saw one.
    prompt = loaded.model.tokenize("The capital of France is")
    fresh = LlamaRunner(model, make_context(n_ctx=768, n_batch=768, n_ubatch=64))
    step = Step("prefill", (Slice(SlotId(0), 0, prompt, GREEDY),))
    assert runner.run(step) == fresh.run(step)
    assert (runner.context.rows() == fresh.context.rows()).all()
    runner.close()
    runner.close()


def test_small_batches_do_not_stop_the_warm_up(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    loaded = load_runner(configuration(path, batch_size=1, ubatch_size=1, ctx_size=1), lambda _: None)
    assert loaded.facts.prefill_chunk == 16
    assert loaded.facts.n_cells == 1
    assert [n_tokens for n_tokens, _ in loaded.shapes.row_costs] == [1, 2, 4, 8, MIN_CHUNK]
    loaded.runner.close()


def test_the_engine_gets_a_runner_and_the_librarys_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        loaded = load_model(configuration(write_tiny(tmp_path / "tiny.gguf")), lambda _: None)
    finally:
        open_library().on_log = None
    assert isinstance(loaded.runner, LlamaRunner)
    read = loaded.prompts.read("a")
    assert isinstance(read, Read)
    assert read.tokens[0] == 1
    assert loaded.facts.context_length == 64
    assert "llama.cpp: llama_context: n_ctx_seq (768) > n_ctx_train (64)" in capsys.readouterr().err
    loaded.runner.close()


@pytest.mark.parametrize(
    ("line", "begins"),
    [
        (LogLine("warning", "no room"), LIBRARY_LINES[0]),
        (LogLine("error", "no memory"), LIBRARY_LINES[1]),
        (LogLine("warning", f"more cells -- {FALSE_ALARM}"), "llama.cpp: "),
    ],
)
def test_the_front_learns_how_grave_a_line_of_the_library_is(
    line: LogLine, begins: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine and the front know each other's words only here."""
    to_stderr(line)
    assert capsys.readouterr().err == f"{begins}{line.text}\n"


def test_the_engine_gets_the_shapes_of_its_steps_and_a_flags_self_test_fits_them(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    free, fixed = (
        load_model(configuration(path, deterministic=is_fixed), lambda _: None) for is_fixed in (False, True)
    )
    assert (free.facts.prefill_chunk, free.widest_step) == (64, 64)
    assert (fixed.facts.prefill_chunk, fixed.widest_step) == (64, 64)
    assert min(free.facts.step_s, fixed.facts.step_s) > 0, "the front knows what a step takes before there was one"
    assert isinstance(free.runner, LlamaRunner)
    assert isinstance(fixed.runner, LlamaRunner)
    n_outputs = free.runner.context.n_outputs
    assert n_outputs < fixed.runner.context.n_outputs == 64, "each row of a chunk may be wanted"
    assert [n_tokens for n_tokens, _ in free.facts.row_costs] == [1, 2, 4, 8, 16, 32]
    assert fixed.facts.row_costs == ()
    tested = fixed.facts.determinism
    assert tested is not None
    assert tested.is_same
    assert tested.tried is not None
    assert tested.tried.widths == (1, 2)
    assert free.facts.determinism is None or free.facts.determinism.tried is None, "a rule tells"
    assert free.runner.kv.n_free_cells == fixed.runner.kv.n_free_cells == 768
    open_library().on_log = None


# ── what finished jobs leave ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "swa_full", "is_full", "reason"),
    [
        (SLIDING, "auto", True, None),
        (SLIDING, "on", True, None),
        (SLIDING, "off", False, "1 of 2 layers keep only their sliding window of 8 tokens"),
        (RECURRENT, "auto", None, None),
        (HYBRID, "auto", None, None),
        (PLAIN, "off", None, None),
    ],
    ids=str,
)
def test_the_load_says_whether_prefixes_are_kept_and_inspect_agrees(
    tmp_path: Path, kind: Kind, swa_full: SwaFull, is_full: bool | None, reason: str | None
) -> None:
    path = write_random(tmp_path / "random.gguf", kind)
    loaded = load_model(configuration(path, swa_full=swa_full), lambda _: None)
    facts = loaded.facts
    assert isinstance(loaded.runner, LlamaRunner)
    loaded.runner.close()
    open_library().on_log = None
    assert facts.swa_full is is_full
    assert (facts.prefix_cache_off or "").startswith(reason or "")
    assert (facts.prefix_cache_off is None) is (reason is None) is (facts.prefix_cache_bytes > 0)
    has_state = kind in (RECURRENT, HYBRID)
    assert bool(loaded.retained_slots) is (reason is None and not has_state), "they are cut"
    assert bool(facts.row_costs) is (facts.drafts.off_because is None) is (reason is None and kind != RECURRENT)
    assert facts.drafts.snapshots == (MAX_SNAPSHOTS if kind == HYBRID else 0)
    assert bool(facts.checkpoint_stride) is bool(facts.checkpoint_bytes) is has_state
    if swa_full == "auto":
        memory = inspected(path).memory
        assert (memory.prefix_cache_off, memory.prefix_cache_bytes > 0) == (facts.prefix_cache_off, reason is None)
        assert (memory.drafts_off, memory.snapshots) == (facts.drafts.off_because, facts.drafts.snapshots)


@pytest.mark.parametrize(
    ("kind", "swa_full", "refusal"),
    [
        (PLAIN, "auto", None),
        (RECURRENT, "auto", None),
        (HYBRID, "auto", None),
        (SLIDING, "auto", None),
        (SLIDING, "off", "use --swa-full on or --parallel 1, or remove"),
    ],
    ids=str,
)
@pytest.mark.parametrize("wish", [{"deterministic": True}, {"batch_invariant": "on"}], ids=str)
def test_bits_are_promised_only_where_each_sequences_cells_lie_in_order(
    tmp_path: Path, kind: Kind, swa_full: SwaFull, refusal: str | None, wish: dict[str, Any]
) -> None:
    """Attention adds up cells as they lie. One job alone fills them in order in any memory."""
    path = write_random(tmp_path / "random.gguf", kind)
    for parallel in (1, 4):
        config = configuration(path, swa_full=swa_full, parallel=parallel, cache_type_k="auto", **wish)
        if refusal is not None and parallel > 1:
            with pytest.raises(ModelLoadFailed, match=refusal):
                load_runner(config, lambda _: None)
        else:
            load_runner(config, lambda _: None).runner.close()


def test_a_prefix_cache_beyond_memory_is_refused_but_to_a_successor(tmp_path: Path) -> None:
    config = configuration(write_tiny(tmp_path / "tiny.gguf"), prefix_cache_mb=str(2**30))
    with pytest.raises(InsufficientMemory, match="--prefix-cache-mb 1073741824 is more than the"):
        load_runner(config, lambda _: None)
    places = encode_json(places_of(config, available_memory_bytes()))
    before = msgspec.structs.replace(FACTS, places=places, prefill_chunk=32, prefix_cache_bytes=2**50)
    loaded = load_runner(replace(config, predecessor=before), lambda _: None)
    assert (loaded.facts.prefill_chunk, loaded.facts.prefix_cache_bytes) == (32, 2**50)
    loaded.runner.close()


def test_a_bad_file_is_refused_before_the_library_sees_it(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(BadModelFile):
        load_runner(configuration(path), lambda _: None)


def test_a_context_beyond_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InsufficientMemory, match=r"not enough memory on CPU \(.*the largest --ctx-size that fits is "
    ) as e:
        load_runner(configuration(write_tiny(tmp_path / "tiny.gguf"), ctx_size=2**31 - 257), lambda _: None)
    assert str(e.value.device) in str(e.value)
    assert e.value.needed_bytes > e.value.available_bytes > 0


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[..., Model]]:
    """A tiny model, with what its vocabulary has beyond bytes."""
    models = ExitStack()

    def load(**vocabulary: Any) -> Model:
        path = write_tiny(tmp_path / "tiny.gguf", **vocabulary)
        return models.enter_context(loaded_on_cpu(path))

    with models:
        yield load


@pytest.mark.model
def test_the_same_vocabulary_passes(load: Callable[..., Model]) -> None:
    check_same_vocabulary("d.gguf", load(characters="é"), load(characters="é"))


@pytest.mark.model
@pytest.mark.parametrize(
    ("draft", "served", "difference"),
    [
        ({}, {"characters": "é"}, "it has 262 tokens, the model's has 263"),
        ({"characters": "è"}, {"characters": "é"}, "token 262 is 'è' there, 'é' in the model's"),
    ],
)
def test_the_first_difference_of_two_vocabularies_is_named(
    load: Callable[..., Model], draft: dict[str, str], served: dict[str, str], difference: str
) -> None:
    said = (
        f"--draft-model d.gguf: its vocabulary is not the model's: {difference}; use a draft model of the same family"
    )
    with pytest.raises(ModelLoadFailed, match=re.escape(said)):
        check_same_vocabulary("d.gguf", load(**draft), load(**served))


CONTROLS = {"<think>": TokenId(1), "</think>": TokenId(2), "<tool_call>": TokenId(3), "": TokenId(4)}


@pytest.mark.parametrize(
    ("name", "controls", "enders"),
    [
        ("qwen3", ("<tool_call>", "</tool_call>"), ["<tool_call>\n"]),
        ("qwen3", ("<|im_end|>", ""), []),
        ("glm-4.5", (), ["<tool_call>"]),
        ("command-r7b", ("<|START_ACTION|>",), ["<|START_ACTION|>[\n    "]),
        ("ministral", ("[TOOL_CALLS]", "[ARGS]"), ["[TOOL_CALLS]"]),
        ("nemotron-nano-v2", ("<s>",), []),
    ],
)
def test_a_control_token_ends_the_reasoning_in_every_form(
    name: str, controls: tuple[str, ...], enders: list[str]
) -> None:
    assert enders_of(FORMATS[name], controls) == enders


def test_the_reasoning_ends_at_the_token() -> None:
    marks = marks_among(CONTROLS, None, None, ("<tool_call>",), enders_of(FORMATS["qwen3"], CONTROLS))
    thinking = marks.after(CONTENT, TokenId(1), b"")
    assert thinking.channel is Channel.REASONING
    assert marks.after(thinking, TokenId(3), b"") is CONTENT
