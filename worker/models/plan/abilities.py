"""The abilities of a model's memory: prefixes to share, drafts to take back, a head that drafts; else the reason.

Owns the reasons that `inspect`, `/health` and the log give, and the number of snapshots: earlier recurrent states that
the library keeps beside a sequence's last one. Pure; it reads the model info and the configuration alone, so that
`inspect` says what `serve` will say.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from worker.config.engine_settings import Configure
from worker.limits import MAX_DRAFTS
from worker.models.facts.info import ModelInfo, block_of
from worker.models.plan.memory import MAX_STRIDE, Need, Plan, checkpoint_stride, has_checkpoints, has_state
from worker.models.upstream.architectures import (
    ATTENTION_FREE,
    COPYING_EACH_SNAPSHOT,
    HYBRIDS_OF_SEVERAL_PARTS,
    NEEDED_BY_A_HEAD,
    OF_SEVERAL_PARTS,
    WITH_A_HEAD,
    WITH_SNAPSHOTS,
)
from worker.models.upstream.numbers import MAX_SEQ_IDS

MAX_SLOTS, MAX_SLOTS_OF_WINDOWS = MAX_SEQ_IDS - 1, MAX_SEQ_IDS // 2 - 1
"""The most slots that leave a sequence id for sharing (llama/seq_ids.py)."""

MAX_SNAPSHOTS = 7
"""The most draft tokens of one job in a step."""
MAX_COPIED = 3
"""The most where each costs time in every step. With three, a step of one token takes 7 % longer in a model of 300
million weights in Qwen3.5's shape, and with seven 12 %."""

MIN_UBATCH = 2 * (1 + MAX_DRAFTS)
"""The least tokens of a micro-batch: all slices that have drafts must be in one (llama/state_kv.py)."""

COPYING_IS_SLOW = (
    "on this device a prefix is computed again sooner than a copy of it is loaded from main memory; finished jobs' "
    "prefixes stay in the device's memory as far as there is room"
)


def _uncut(info: ModelInfo, verb: str) -> str | None:
    """Return the reason why no part of a sequence can be taken, whatever the settings."""
    name = info.architecture
    if name in (*OF_SEVERAL_PARTS, *HYBRIDS_OF_SEVERAL_PARTS):
        return f"{name} keeps an index for its KV cells, which cannot be cut"
    if has_state(info) and not has_checkpoints(info):
        return f"{name} has recurrent state beside sliding windows, which cannot be {verb} together"
    return None


def _first(reasons: Mapping[str, bool]) -> str | None:
    """Return the first that is true."""
    return next((why for why, is_true in reasons.items() if is_true), None)


# ── prefixes ─────────────────────────────────────────────────────────────────────────────────────


def obstacle(info: ModelInfo, *, swa_full: bool, parallel: int) -> str | None:
    """Return the reason why every prompt is computed from its start; None if cached prefixes are reused."""
    if (why := _uncut(info, "copied")) is not None:
        return why
    if info.windows is not None and not swa_full:
        return (
            f"{info.windows.n_layers} of {info.block_count} layers keep only their sliding window of "
            f"{info.windows.length} tokens: use --swa-full on, and a smaller --ctx-size if memory is short"
        )
    most = MAX_SLOTS if info.windows is None else MAX_SLOTS_OF_WINDOWS
    if parallel <= most or info.architecture in ATTENTION_FREE:
        return None
    return f"--parallel {parallel} leaves no sequence id for sharing; use at most {most}"


@dataclass(frozen=True, slots=True)
class Kept:
    """The bytes that finished jobs' cells may take; if there are none, the reason. And what a copy of a recurrent state
    takes, and how many tokens lie between two; 0 where there are none.
    """

    limit_bytes: int
    off_because: str | None = None
    checkpoint_bytes: int = 0
    checkpoint_stride: int = 0


def kept_of(
    info: ModelInfo,
    plan: Plan,
    need: Need,
    limit_bytes: int,
    *,
    can_share: bool,
    state_bytes: int = 0,
    is_copying_worthwhile: bool = True,
) -> Kept:
    """The limit and why it is 0. What the context says counts; the model info knows the words."""
    if not can_share:
        why = obstacle(info, swa_full=plan.swa_full, parallel=plan.parallel)
        return Kept(0, why or f"llama.cpp's memory for {info.architecture} cannot be cut")
    if limit_bytes and not is_copying_worthwhile:
        return Kept(0, COPYING_IS_SLOW)
    why_off = None if limit_bytes else "--prefix-cache-mb is 0, or the model leaves no main memory for it"
    stride = checkpoint_stride(plan, need) or MAX_STRIDE
    return Kept(limit_bytes, why_off, state_bytes, stride if state_bytes else 0)


# ── drafts ───────────────────────────────────────────────────────────────────────────────────────


def with_snapshots(info: ModelInfo, config: Configure, plan: Plan, need: Need, fits: Callable[[Plan], bool]) -> Plan:
    """Return the plan with as many snapshots as fit, if there are to be drafts. They take at most as much memory as
    cells and states, which `need` has without them, and neither cells nor jobs nor layers on a GPU.
    """
    if not has_state(info) or _no_drafts(info, config, plan) is not None:
        return plan
    most = MAX_COPIED if info.architecture in COPYING_EACH_SNAPSHOT else MAX_SNAPSHOTS
    for n_snapshots in range(most, 0, -1):
        larger = replace(plan, n_snapshots=n_snapshots)
        if n_snapshots * need.buffers.of_kind("RS") <= need.kv_bytes and fits(larger):
            return larger
    return plan


def drafts_off(info: ModelInfo, config: Configure, plan: Plan) -> str | None:
    """Return the reason why there are no drafts; None if there are."""
    if (why := _no_drafts(info, config, plan)) is not None:
        return why
    if has_state(info) and not plan.n_snapshots:
        return "snapshots of recurrent state have no room: use a smaller --parallel or --ctx-size, or free memory"
    return None


def _no_drafts(info: ModelInfo, config: Configure, plan: Plan) -> str | None:
    """Return the flag by which there are to be none, else the reason why wrong ones cannot be taken back."""
    is_unwanted = config.prompt_lookup == "off" and config.draft_path is None and not info.loads_heads
    uncut, name, is_recurrent, n_batch = (
        _uncut(info, "cut"),
        info.architecture,
        has_state(info),
        MIN_UBATCH + plan.parallel,
    )
    return _first(
        {
            "with --deterministic there are none": config.deterministic,
            "--prompt-lookup is off, and neither --draft-model nor --mtp drafts": is_unwanted,
            str(uncut): uncut is not None,
            "small sliding windows cannot be cut: use --swa-full on": info.windows is not None and not plan.swa_full,
            f"llama.cpp keeps no snapshots of {name}'s recurrent state, and without them it cannot be cut": (
                is_recurrent and name not in WITH_SNAPSHOTS
            ),
            "with --batch-invariant on there are none: recurrent layers compute several tokens otherwise than one": (
                is_recurrent and config.must_be_invariant
            ),
            f"snapshots of recurrent state need --ubatch-size {MIN_UBATCH} or more (got {plan.ubatch_size})": (
                is_recurrent and plan.ubatch_size < MIN_UBATCH
            ),
            f"snapshots of recurrent state need --batch-size {n_batch} or more (got {config.batch_size})": (
                is_recurrent and config.batch_size < n_batch
            ),
        }
    )


# ── the model's own next-token head (MTP) ────────────────────────────────────────────────────────


def heads_off(info: ModelInfo, config: Configure) -> str | None:
    """Return the reason why the model's head does not draft; None if it does, by the file and the settings."""
    name, block = info.architecture, info.block_count - 1
    names = {tensor.name for tensor in info.tensors if block_of(tensor.name) == block}
    needed = (f"blk.{block}.{each}" for each in NEEDED_BY_A_HEAD)
    lacking = next((each for each in needed if each not in names), None)
    return _first(
        {
            "the file has no next-token head": not info.n_mtp_blocks,
            f"llama.cpp keeps no snapshots of {name}'s recurrent state, so wrong drafts could not be taken back": (
                has_state(info) and name not in WITH_SNAPSHOTS
            ),
            f"the worker does not draft with the heads of {name}": name not in WITH_A_HEAD,
            f"the file has {info.n_mtp_blocks} next-token heads, and the worker drafts with one": info.n_mtp_blocks > 1,
            f"the file says that it has a next-token head, but lacks {lacking}": lacking is not None,
            "with --deterministic nothing is drafted": config.deterministic,
            "--mtp would load it": not config.mtp,
        }
    )


def with_heads(info: ModelInfo, config: Configure) -> ModelInfo:
    """Return the facts of the model as it is to be loaded: with its head if that drafts."""
    return info if heads_off(info, config) is not None else replace(info, loads_heads=True)
