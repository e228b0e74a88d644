"""The way from a configuration to a running model: library → info → placement → weights → context → warm-up → facts;
and the choice of the chat template. Composition only; every step's knowledge lies in its own module.
"""

import logging
import math
import os
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import msgspec

from worker.config.engine_settings import Configure
from worker.engine.backend import LoadedModel
from worker.engine.channels import ControlTokens
from worker.engine.families import marks_among
from worker.engine.prefill_budget import widest_step_of
from worker.errors import ModelLoadFailed
from worker.formats.render.escapes import ControlNames, Json
from worker.formats.render.sandbox import BrokenTemplate
from worker.formats.render.template import ChatTemplates
from worker.formats.tool_format import chat_format
from worker.host import available_memory_bytes, cpu_quota
from worker.llama.context import Context
from worker.llama.devices import attention_at, check_cache_types, check_flash, memory_of
from worker.llama.invariance import REPEATED_PRODUCTS_OFF, check_order, numerics_of, own_types, rule_of, type_k_of
from worker.llama.kernels import choose_kernels, fixed
from worker.llama.library import OnLog, build, give_back_memory, open_library
from worker.llama.model import Model, constraints_of
from worker.llama.repack import amx_of, layout_of
from worker.llama.runner import LlamaRunner
from worker.llama.self_test import Serving, demanded
from worker.llama.tokenizer import Prompts
from worker.llama.warm_up import Shapes, warm_up
from worker.models.facts.info import ModelInfo, read_info
from worker.models.loading.contexts import (
    Drafting,
    context_sizes,
    load_weights,
    with_draft_model,
    with_head,
    without,
)
from worker.models.loading.paging import paging
from worker.models.loading.places import Places, places_of, to_stderr
from worker.models.plan.abilities import drafts_off, heads_off, kept_of, with_heads
from worker.models.plan.buffers import BufferSizes
from worker.models.plan.devices import Backend
from worker.models.plan.memory import Plan, snapshot_bytes
from worker.models.plan.pair import asked_of, left_in_main
from worker.models.plan.placement import Placement, prefix_cache_limit
from worker.models.plan.residency import is_resident, off_plan, residency_on
from worker.server.saved.keeper import Keeper, Keeping
from worker.wire.chat_format import HERMES, ChatFormat
from worker.wire.encoding import encode_json
from worker.wire.jobs import SlotId, TokenId
from worker.wire.load import (
    Drafts,
    Loaded,
    ModelFacts,
    Offload,
)
from worker.wire.messages import Violation

log = logging.getLogger(__name__)
"""Its warnings go to the front, which logs them (server/process/main.py)."""


@dataclass(frozen=True, slots=True)
class LoadedRunner:
    """A runner, warm and empty, and what is to be reported of it. Closing the runner frees everything."""

    runner: LlamaRunner
    model: Model
    info: ModelInfo
    facts: Loaded
    shapes: Shapes
    widest_step: int
    """The tokens of a prefill step while no job generates."""
    drafting: Drafting


def load_model(config: Configure, on_progress: Callable[[int], None]) -> LoadedModel:
    """Load a model for the engine process; the library's warnings and errors go to stderr, which the front reads."""
    check_given_template(config)
    loaded = load_runner(config, on_progress, to_stderr)
    runner, shapes = loaded.runner, loaded.shapes
    facts = loaded.facts
    try:
        chat = chat_of(config, loaded.info, loaded.model)
        if config.must_be_invariant:
            serving = Serving(
                chunk=shapes.chunk,
                is_fixed=config.deterministic,
                n_parallel=facts.parallel,
                has_drafts=bool(shapes.row_costs),
                context_length=facts.context_length,
            )
            # The load goes on at 100 percent meanwhile.
            tested = demanded(config, runner, serving, lambda: on_progress(100))
            facts = msgspec.structs.replace(facts, determinism=tested)
    except ModelLoadFailed:
        runner.close()
        raise
    sizes = runner.sizes + loaded.drafting.sizes
    on_gpus = [(gpu, sizes.on_device(gpu.name)) for gpu in loaded.model.devices if gpu.is_gpu]
    keeper = _keeper(config, loaded)
    form = chat_format(chat.for_tools, loaded.model.end_names) if isinstance(chat, ChatTemplates) else HERMES
    marks = marks_of(loaded.model, form)
    return LoadedModel(
        runner,
        Prompts(loaded.model, chat),
        constraints_of(loaded.model, marks, form).constrain,
        msgspec.structs.replace(facts, model=_model_facts(loaded, chat, form, marks)),
        marks=marks,
        give_back=give_back_memory,
        message_ends=frozenset(map(TokenId, loaded.model.ends.tolist())),
        widest_step=loaded.widest_step,
        retained_slots=tuple(map(SlotId, range(loaded.facts.parallel, runner.context.n_slots))),
        max_dead_cells=shapes.retention.max_dead_cells,
        draft=loaded.drafting.draft,
        residency=residency_on(on_gpus, memory_of, is_resident=loaded.facts.resident) if on_gpus else None,
        find=None if keeper is None else keeper.find,
        flush=None if keeper is None or config.prefix_cache_dir is None else keeper.flush,
    )


def _keeper(config: Configure, loaded: LoadedRunner) -> Keeper | None:
    """Return the keeper of finished jobs' cells, if anything is kept and the front has memory for it."""
    kv, facts = loaded.runner.kv, loaded.facts
    if config.arena_fd < 0 or not facts.prefix_cache_bytes:
        return None
    context = loaded.runner.context
    # All that decides which bits a cell has, beside the model and its tokens; what the context made of the
    # configuration counts. Chunks do not: if answers depend on them, they depend on other jobs too.
    made_by = (
        *(build(), facts.backend, facts.device_name, facts.offload.gpu_layers),
        *(facts.offload.tensor_split, config.split_mode, config.cache_type_k, config.cache_type_v, config.flash_attn),
        *(facts.swa_full, context.n_ctx, context.n_batch, context.n_ubatch, context.n_slots, config.threads),
        *(config.threads_batch, cpu_quota(), config.deterministic, config.must_be_invariant, kv.layout),
        *(facts.drafts.snapshots, sorted(own_types())),
    )
    keeping = Keeping(
        arena_fd=config.arena_fd,
        directory=config.prefix_cache_dir,
        limit_bytes=facts.prefix_cache_bytes,
        model_paths=loaded.info.part_paths,
        facts=repr(made_by).encode(),
        layout=kv.layout,
    )
    try:
        kv.keeper = Keeper(keeping)
    except OSError as error:
        log.warning("what jobs compute is not kept beyond the engine: %s", error.strerror)
    return kv.keeper


def load_runner(config: Configure, on_progress: Callable[[int], None], on_log: OnLog | None = None) -> LoadedRunner:
    """Load, measure and warm up. `on_progress`: whole percents of the weights, never falling.

    Raises: ModelNotFound, BadModelFile, ModelLoadFailed, InsufficientMemory; everything is freed then.
    """
    if config.must_be_invariant and not config.deterministic:
        os.putenv(*REPEATED_PRODUCTS_OFF)
    open_library(on_log)
    info = with_heads(read_info(Path(config.model_path)), config)
    available_bytes = available_memory_bytes()
    places = places_of(config, available_bytes)
    kernels = choose_kernels(config, info, places.kernels)
    placement, plan = places.served, places.served.plan
    if places.draft is not None:
        available_bytes = left_in_main(places.draft, available_bytes)
    if warning := check_cache_types(config, placement.device, type_k_of(config, is_on_gpu=placement.group.is_gpu)):
        log.warning(warning)
    prefix_bytes = prefix_cache_limit(config, placement, available_bytes)
    with paging(on_progress, info.file_bytes) as progress, ExitStack() as undo:
        model = undo.enter_context(load_weights(config, info, placement, progress.hear))
        runner, drafting = _runner_and_head(config, info, model, plan)
        _check(config, info, runner, n_jobs=plan.parallel)
        sizes = runner.sizes + drafting.sizes
        offload = _offload(placement, model, sizes)
        if config.require_full_offload and not is_resident(info, placement, model.n_offloaded, sizes):
            raise ModelLoadFailed(
                f"only a part of the model is on {', '.join(device.name for device in placement.group.devices)}: "
                "use --gpu-layers all, a smaller model, or remove --require-full-offload"
            )
        wants_drafts = config.prompt_lookup != "off" or config.draft_path is not None or drafting.draft is not None
        shapes = _warmed_up(config, runner, wants_drafts=wants_drafts)
        # The context decides this, and the model info knows the words.
        unknown = None if runner.kv.max_undone else f"llama.cpp's memory for {info.architecture} cannot be cut"
        drafts = Drafts(
            off_because=drafts_off(info, config, plan) or unknown,
            snapshots=plan.n_snapshots,
            snapshot_bytes=snapshot_bytes(plan, placement.need),
            next_token_head=drafting.head if info.n_mtp_blocks else None,
        )
        if config.draft_path is not None:
            drafting = _load_draft(config, places, runner, on_progress, drafts.off_because)
        undo.pop_all()
    widest_step = shapes.chunk
    if not config.deterministic:
        widest_step = widest_step_of(shapes.chunk, shapes.ubatch_size, can_abort=runner.can_abort)
    facts = _facts(info, placement, runner, sizes, shapes=shapes, prefix_bytes=prefix_bytes)
    facts = msgspec.structs.replace(
        facts,
        places=encode_json(places),
        kernels=kernels,
        offload=offload,
        drafts=drafts,
        draft=drafting.model,
        memory_bytes=facts.memory_bytes + drafting.model_bytes,
        step_s=shapes.chunk_s * widest_step / shapes.chunk,
    )
    facts = _determined(facts, config, info, placement, runner)
    return LoadedRunner(runner, model, info, facts, shapes, widest_step, drafting)


def _runner_and_head(config: Configure, info: ModelInfo, model: Model, plan: Plan) -> tuple[LlamaRunner, Drafting]:
    """The model's runner, and its head or why there is none."""
    sizes = context_sizes(config, model, plan)
    why_off = heads_off(info, config) or drafts_off(info, config, plan)
    if why_off is not None:
        return LlamaRunner(model, Context(model, **sizes)), without(why_off)
    context, drafting = with_head(model, plan.parallel, sizes)
    return LlamaRunner(model, context), drafting


def _warmed_up(config: Configure, runner: LlamaRunner, *, wants_drafts: bool) -> Shapes:
    """A successor's steps have its predecessor's shapes, and their costs are not measured again."""
    known = config.predecessor
    return warm_up(
        runner,
        chunk=0 if known is None else known.prefill_chunk,
        row_costs=() if known is None else known.row_costs,
        switch_s=0.0 if known is None else known.switch_s,
        padded_widths=() if known is None else known.padded_widths,
        target_s=config.itl_target_s,
        is_deterministic=config.deterministic,
        wants_drafts=wants_drafts,
    )


def _check(config: Configure, info: ModelInfo, runner: LlamaRunner, *, n_jobs: int) -> None:
    """Raises: ModelLoadFailed where the context is not what was demanded."""
    device, has_order = runner.model.device, runner.kv.seq_ids.forgotten_seq_id is not None
    check_flash(config, device, is_without_flash=runner.context.is_without_flash)
    # On a GPU, and without cells, there is no order to keep.
    has_none = device.is_gpu or not runner.sizes.of_kind("KV")
    check_order(config, info, has_order=has_order or has_none, n_jobs=n_jobs)


def placed(config: Configure, info: ModelInfo) -> Placement:
    """Return the place for a model alone on this machine now. Its kernels are not timed, so that a report names always
    the same. Raises: ModelLoadFailed, InsufficientMemory.
    """
    config = replace(config, kernels=fixed(config.kernels))
    places = places_of(config, available_memory_bytes())
    choose_kernels(config, info, places.kernels)
    return places.served


def _load_draft(
    config: Configure, places: Places, served: LlamaRunner, on_progress: Callable[[int], None], why_off: str | None
) -> Drafting:
    """The draft model, which is closed with the served one. The load goes on at 100 percent meanwhile.

    Raises: ModelLoadFailed where it cannot draft for it.
    """
    assert config.draft_path is not None
    assert places.draft is not None
    path, place = config.draft_path, places.draft
    if why_off is not None:
        raise ModelLoadFailed(
            f"--draft-model {path}: wrong drafts could not be taken from the memory of the model "
            f"itself: {why_off}; or remove --draft-model"
        )
    info = read_info(Path(path))
    own = asked_of(config, info, place.plan.n_cells, places.served.plan.parallel)
    model = load_weights(own, info, place, lambda _: on_progress(100))
    served.model.close_before(model.close)
    return with_draft_model(own, info, place, model, served.model)


def _model_facts(
    loaded: LoadedRunner, chat: ChatTemplates | Violation, form: ChatFormat, marks: ControlTokens
) -> ModelFacts:
    model, info, tokens = loaded.model, loaded.info, loaded.model.template_tokens
    templates = chat if isinstance(chat, ChatTemplates) else None
    return ModelFacts(
        n_ctx_train=info.context_length,
        n_params=sum(math.prod(tensor.dims) for tensor in info.tensors),
        file_bytes=info.file_bytes,
        bos_token=tokens["bos_token"] or None,
        eos_token=tokens["eos_token"] or None,
        pad_token=tokens["pad_token"] or None,
        can_infill=model.infill_marks is not None,
        chat_template=templates.default.source if templates else None,
        chat_template_caps=templates.caps if templates else (),
        chat_format=form,
        can_limit_reasoning=bool(marks.closers or marks.text_markers),
    )


def _offload(placement: Placement, model: Model, sizes: BufferSizes) -> Offload:
    """The place of the layers, now that they are there and nothing was computed yet."""
    return Offload(
        gpu_layers=placement.n_gpu_layers,
        layers_total=placement.n_layers,
        tensor_split=placement.group.shares if len(placement.group.devices) > 1 else (),
        off_plan=off_plan(placement, sizes, [memory_of(device).free_bytes for device in model.devices]),
    )


def _facts(
    info: ModelInfo, placement: Placement, runner: LlamaRunner, sizes: BufferSizes, *, shapes: Shapes, prefix_bytes: int
) -> Loaded:
    """The facts that the model, its context and the warm-up say. `sizes`: with those of a next-token head."""
    model, plan, device = runner.model, placement.plan, placement.device
    kept = kept_of(
        info,
        plan,
        placement.need,
        prefix_bytes,
        can_share=runner.kv.can_share,
        state_bytes=runner.kv.n_state_bytes,
        is_copying_worthwhile=shapes.retention.is_copying_worthwhile,
    )
    return Loaded(
        name=info.name,
        quant_kind=info.quant_kind,
        tokenizer_kind=info.tokenizer_kind,
        vocab_size=model.n_vocab,
        context_length=plan.context_length,
        n_cells=plan.n_cells,
        parallel=plan.parallel,
        resident=is_resident(info, placement, model.n_offloaded, sizes),
        backend=cast(Backend, device.backend),  # candidates() gives no other
        device_index=device.index,
        device_name=" + ".join(one.description for one in placement.group.devices),
        memory_architecture=device.memory_architecture,
        memory_bytes=sum(map(sizes.on_device, model.device_names)) if device.is_gpu else sizes.total_bytes,
        prefill_chunk=shapes.chunk,
        row_costs=shapes.row_costs,
        switch_s=shapes.switch_s,
        padded_widths=shapes.padded_widths,
        batch_size=runner.context.n_batch,
        prefix_cache_bytes=kept.limit_bytes,
        prefix_cache_off=kept.off_because,
        checkpoint_bytes=kept.checkpoint_bytes,
        checkpoint_stride=kept.checkpoint_stride,
        swa_full=plan.swa_full if info.windows else None,
        amx=amx_of(model.sizes),
        attention=attention_at(model.device_names if device.is_gpu else (), sizes),
    )


def _determined(facts: Loaded, config: Configure, info: ModelInfo, placement: Placement, runner: LlamaRunner) -> Loaded:
    """The facts with those that say what decides the numbers."""
    is_without_flash = runner.context.is_without_flash
    rule = rule_of(
        config,
        info,
        is_on_gpu=placement.device.is_gpu,
        is_without_flash=is_without_flash,
        is_in_order=runner.kv.seq_ids.forgotten_seq_id is not None,
        own_types=own_types(),
        layout=layout_of if placement.weights_in_main.repacked else lambda _: None,
    )
    numerics = None
    if config.wants_numerics:
        numerics = numerics_of(config, info, placement, runner.model.sizes, is_without_flash=is_without_flash)
    return msgspec.structs.replace(
        facts, batch_invariance=rule.invariance(config), determinism=rule.determinism, numerics=numerics
    )


# ── the chat ─────────────────────────────────────────────────────────────────────────────────────


def check_given_template(config: Configure) -> None:
    """Refuse a file that is of no use before the weights are read. Raises: ModelLoadFailed."""
    if config.template is None:
        return
    try:
        tokens = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "")
        ChatTemplates(config.template, None, names=ControlNames(()), tokens=tokens, variables=_variables(config))
    except BrokenTemplate as error:
        raise ModelLoadFailed(f"--chat-template: {error}; use another file, or remove the flag") from None


def chat_of(config: Configure, info: ModelInfo, model: Model) -> ChatTemplates | Violation:
    """The template of the file that the configuration names, else the model's own; or why there is none. A model that
    cannot be used for chat serves everything else, which is logged once.

    Raises: ModelLoadFailed for variables that no template accepts.
    """
    variables = _variables(config)
    default = config.template or info.chat_template
    if default is None:
        return _no_chat("the model has no chat template")
    try:
        chat = ChatTemplates(
            default,
            None if config.template else info.chat_template_for_tools,
            names=ControlNames(model.controls),
            tokens=model.template_tokens,
            variables=variables,
        )
    except BrokenTemplate as error:
        log.warning("the model's chat template cannot be used: %s", error)
        return _no_chat(f"the model's chat template cannot be used: {error}")
    if not variables.keys() <= chat.keys:
        raise ModelLoadFailed(f"--chat-template-kwargs: {chat.known_variables}")
    return chat


def marks_of(model: Model, form: ChatFormat) -> ControlTokens:
    """The tokens that divide the model's answers, and those of its calls."""
    calls = form.calls
    markers = [] if calls is None else [getattr(calls, name) for name in _MARKERS]
    pair = None if form.reasoning is None else (form.reasoning.begin.strip(), form.reasoning.end.strip())
    marks = marks_among(model.controls, model.words, pair, markers, enders_of(form, model.controls))
    if form.reasoning is None or marks.turns or (calls is not None and calls.form == "harmony"):
        return marks
    return replace(marks, text_markers=(form.reasoning.begin, form.reasoning.end), piece=model.piece)


def enders_of(form: ChatFormat, controls: Collection[str]) -> list[str]:
    """The markers with which a call ends the reasoning. Unless the format says so, only a control token does: the
    reasoning may speak of other markers."""
    calls, always = form.calls, form.reasoning is not None and form.reasoning.is_ended_by_call
    markers = [] if calls is None else [each for each in (calls.section_begin, calls.call_begin) if each]
    return [each for each in markers if always or each.strip().startswith(tuple(filter(None, controls)))]


_MARKERS = (
    *("section_begin", "section_end", "call_begin", "call_end", "between", "name_end", "id_begin", "id_end"),
    *("index_begin", "parameter_begin", "parameter_name_end", "parameter_end", "mark_end", "name_prefix"),
)
"""The members of CallFormat that are texts of an answer."""


def _variables(config: Configure) -> dict[str, Json]:
    return cast(dict[str, Json], msgspec.json.decode(config.chat_template_kwargs, type=dict[str, object]))


def _no_chat(why: str) -> Violation:
    return Violation("messages", "no_chat_template", f"{why}; start the worker with --chat-template FILE")
