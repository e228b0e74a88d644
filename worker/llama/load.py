"""From a configuration to a model that runs: library → device → card → plan → weights → context → warm-up → facts.

Composition only; every step's knowledge lies in its own module. Runs on the thread that will run the steps.
"""

import math
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import msgspec

from worker.card import ModelCard, read_card
from worker.engine.backend import LoadedModel
from worker.engine.contract import Configure, Loaded, SlotId
from worker.errors import InsufficientMemory, ModelLoadFailed
from worker.host import available_memory_bytes, cpu_quota
from worker.llama.buffers import LogLine
from worker.llama.cells import N_SPARE_SEQ_IDS, can_be_cut
from worker.llama.context import MAX_SLOTS, Context
from worker.llama.devices import Backend, Device, choose_device, devices
from worker.llama.grammar import Grammars
from worker.llama.library import OnLog, open_library
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.llama.self_test import MOST_S, Habits, self_test
from worker.llama.threads import Threads, clocks
from worker.llama.warm_up import LEAST_CHUNK, Shapes, warm_up
from worker.memory import Plan, k_type, plan_memory, prefix_cache_bytes

WIDENING = 4
"""How many chunks long a prefill step is while nobody generates. Wider ones gain nothing on a CPU (430 tokens: 1.61 s
in steps of 32, 1.58 of 64, 1.53 of 128, 1.55 of 256), and whoever arrives meanwhile would wait for longer."""

HOST_SHARE = 0.9
"""Of the host's available memory; the rest is left to the front and to everything else that grows."""

ALL_LAYERS = -1
"""llama.h: a negative n_gpu_layers means all."""


@dataclass(frozen=True, slots=True)
class LoadedRunner:
    """A runner, warm and empty, and what is to be reported of it. Closing the runner frees everything."""

    runner: LlamaRunner
    model: Model
    facts: Loaded
    shapes: Shapes


def load_model(config: Configure, on_progress: Callable[[int], None]) -> LoadedModel:
    """What the engine process calls; the library's warnings and errors go to stderr, which the front reads."""
    loaded = load_runner(config, on_progress, _to_stderr)
    runner, shapes = loaded.runner, loaded.shapes
    habits = Habits(
        chunk=shapes.chunk,
        is_fixed=config.is_deterministic,
        has_guesses=bool(shapes.row_costs),
        context_length=loaded.facts.context_length,
    )
    return LoadedModel(
        runner,
        loaded.model.tokenize,
        Grammars(loaded.model).constrain,
        loaded.facts,
        widest_step=0 if config.is_deterministic else _widest_step(runner, shapes.chunk),
        row_costs=shapes.row_costs,
        spare_slot=SlotId(loaded.facts.parallel) if runner.context.n_slots > loaded.facts.parallel else None,
        self_test=partial(self_test, runner, habits, most_s=math.inf if config.is_deterministic else MOST_S),
    )


def load_runner(config: Configure, on_progress: Callable[[int], None], on_log: OnLog | None = None) -> LoadedRunner:
    """Load, measure and warm up. `on_progress`: whole percents of the weights.

    Raises: ModelNotFound, BadModelFile, ModelLoadFailed, InsufficientMemory; everything is freed then.
    """
    open_library(on_log)
    device = choose_device(config.device, devices())
    cache_type_k = k_type(config.cache_type_k, is_on_gpu=device.is_gpu, flash_attn=config.flash_attn)
    config = msgspec.structs.replace(config, cache_type_k=cache_type_k)
    card = read_card(Path(config.model_path))
    plan = plan_for(config, card, device)
    # A successor's limit was checked, as its plan was.
    left_bytes = sys.maxsize if config.prefill_chunk else host_bytes_left(plan, device, available_memory_bytes())
    prefix_bytes = prefix_cache_bytes(config.prefix_cache_bytes, plan, left_bytes)
    n_gpu_layers = layers_on_gpu(config.gpu_layers, device, plan, card.block_count + 1)
    with ExitStack() as undo:
        model = undo.enter_context(
            Model.load(card.path, device=device, n_gpu_layers=n_gpu_layers, on_progress=on_progress)
        )
        if config.require_full_offload:
            _check_offload(model)
        runner = LlamaRunner(model, _context(config, model, plan))
        shapes = warm_up(
            runner,
            chunk=config.prefill_chunk,
            target_s=config.itl_target_ms / 1000,
            is_deterministic=config.is_deterministic,
            has_prompt_lookup=config.has_prompt_lookup,
        )
        undo.pop_all()
    facts = _facts(card, plan, runner, shapes.chunk, prefix_bytes if runner.can_share else 0)
    return LoadedRunner(runner, model, facts, shapes)


# ── memory and layers ────────────────────────────────────────────────────────────────────────────


def plan_for(config: Configure, card: ModelCard, device: Device) -> Plan:
    """The plan for the device's memory; with `auto` layers, host memory counts too when the device's is not enough.

    Raises: InsufficientMemory.
    """
    if not device.is_gpu:
        return _plan(config, card, int(device.free_bytes * HOST_SHARE))
    if config.gpu_layers == "all" or config.require_full_offload:
        return _plan(config, card, device.free_bytes)
    both_bytes = device.free_bytes + int(available_memory_bytes() * HOST_SHARE)
    if config.gpu_layers != "auto":
        return _plan(config, card, both_bytes)
    try:
        return _plan(config, card, device.free_bytes)
    except InsufficientMemory:
        return _plan(config, card, both_bytes)


def _plan(config: Configure, card: ModelCard, available_bytes: int) -> Plan:
    return plan_memory(
        card,
        ctx_size=config.ctx_size,
        parallel=config.parallel,
        cache_type_k=config.cache_type_k,
        cache_type_v=config.cache_type_v,
        ubatch_size=config.ubatch_size,
        has_flash_attention=config.flash_attn != "off",
        # A successor's plan is its predecessor's, which was checked; accepted jobs count on its shape.
        available_bytes=sys.maxsize if config.prefill_chunk else available_bytes,
    )


def host_bytes_left(plan: Plan, device: Device, available_bytes: int) -> int:
    """What a plan leaves of the `available_bytes` of main memory that there are before the load."""
    on_device_bytes = device.free_bytes if device.memory_architecture == "vram-only" else 0
    return int(available_bytes * HOST_SHARE) - max(0, plan.total_bytes - on_device_bytes)


def layers_on_gpu(asked: str, device: Device, plan: Plan, n_layers: int) -> int:
    """`all`, `auto` or a number → n_gpu_layers for the library; `n_layers` counts the output layer.

    `auto`: all where the plan fits, else as many as fit if every layer were of the same size.
    """
    if not device.is_gpu:
        return 0
    if asked == "all" or (asked == "auto" and plan.total_bytes <= device.free_bytes):
        return ALL_LAYERS
    if asked != "auto":
        return int(asked)
    room = max(0, device.free_bytes - plan.compute_bytes)
    return min(n_layers, room * n_layers // (plan.weights_bytes + plan.kv_bytes))


def _check_offload(model: Model) -> None:
    """Raises: ModelLoadFailed. On a CPU there is nothing to offload to, and nothing lies elsewhere."""
    if model.n_offloaded < model.n_layers:
        raise ModelLoadFailed(
            f"only {model.n_offloaded} of {model.n_layers} layers are on {model.device.name}: "
            "use --gpu-layers all, a smaller model, or leave --require-full-offload out"
        )


def _context(config: Configure, model: Model, plan: Plan) -> Context:
    n_threads = config.threads or cpu_quota()
    # Where a result depends on how rows are shared out, their number must stay.
    may_yield = not config.is_deterministic and not model.device.is_gpu
    has_spare_slot = can_be_cut(model) and plan.parallel + N_SPARE_SEQ_IDS < MAX_SLOTS
    return Context(
        model,
        n_ctx=plan.n_cells,
        n_batch=config.batch_size,
        n_ubatch=config.ubatch_size,
        n_seq_max=plan.parallel + has_spare_slot,
        n_threads=n_threads,
        n_threads_batch=config.threads_batch or n_threads,
        type_k=config.cache_type_k,
        type_v=config.cache_type_v,
        flash_attn=config.flash_attn,
        threads=Threads(n_threads, clocks) if may_yield else None,
    )


def _widest_step(runner: LlamaRunner, chunk: int) -> int:
    """A machine that is slow with the least chunk already must not fall silent for longer."""
    return min(runner.context.n_ubatch, WIDENING * chunk) if chunk > LEAST_CHUNK else chunk


# ── facts ────────────────────────────────────────────────────────────────────────────────────────


def _facts(card: ModelCard, plan: Plan, runner: LlamaRunner, chunk: int, prefix_bytes: int) -> Loaded:
    model, device = runner.model, runner.model.device
    sizes = model.sizes + runner.context.sizes
    return Loaded(
        name=card.name,
        quant_kind=card.quant_kind,
        tokenizer_kind=card.tokenizer_kind,
        vocab_size=model.n_vocab,
        context_length=plan.context_length,
        n_cells=plan.n_cells,
        parallel=plan.parallel,
        resident=model.n_offloaded == model.n_layers,
        backend=cast(Backend, device.backend),  # choose_device gives no other
        device_index=device.index,
        device_name=device.description,
        memory_architecture=device.memory_architecture,
        memory_bytes=sizes.on_device(device.name) if device.is_gpu else sizes.total_bytes,
        prefill_chunk=chunk,
        prefix_cache_bytes=prefix_bytes,
    )


def _to_stderr(line: LogLine) -> None:
    if line.level in ("warning", "error"):
        sys.stderr.write(f"llama.cpp: {line.text}\n")
        sys.stderr.flush()
