"""Snapshots: earlier recurrent states that the library keeps beside a sequence's last one, to take wrong drafts back.

Owns how many there are, and the reasons why a model has no drafts, which `inspect`, `/health` and the log give.
Snapshots take what memory a plan leaves, and neither cells nor jobs nor layers on a GPU. Pure; it reads the model info
and the configuration alone, so that `inspect` says what `serve` will say.
"""

from collections.abc import Callable
from dataclasses import replace

from worker.config.engine_settings import Configure
from worker.limits import MAX_DRAFTS
from worker.models.facts.info import ModelInfo
from worker.models.plan.memory import Need, Plan, has_checkpoints, has_state
from worker.models.upstream.architectures import (
    COPYING_EACH_SNAPSHOT,
    HYBRIDS_OF_SEVERAL_PARTS,
    OF_SEVERAL_PARTS,
    WITH_SNAPSHOTS,
)

MAX_SNAPSHOTS = 7
"""The most draft tokens of one job in a step."""
MAX_COPIED = 3
"""The most where each costs time in every step. With three, a step of one token takes 7 % longer in a model of 300
million weights in Qwen3.5's shape, and with seven 12 %."""

MIN_UBATCH = 2 * (1 + MAX_DRAFTS)
"""The least tokens of a micro-batch: all slices that have drafts must be in one (llama/state_kv.py)."""


def with_snapshots(info: ModelInfo, config: Configure, plan: Plan, need: Need, fits: Callable[[Plan], bool]) -> Plan:
    """Return the plan with as many snapshots as fit, if there are to be drafts. They take at most as much memory as
    cells and states, which `need` has without them.
    """
    if not has_state(info) or _unwanted(info, config) is not None or _obstacle(info, config, plan) is not None:
        return plan
    most = MAX_COPIED if info.architecture in COPYING_EACH_SNAPSHOT else MAX_SNAPSHOTS
    for n_snapshots in range(most, 0, -1):
        larger = replace(plan, n_snapshots=n_snapshots)
        if n_snapshots * need.buffers.of_kind("RS") <= need.kv_bytes and fits(larger):
            return larger
    return plan


def drafts_off(info: ModelInfo, config: Configure, plan: Plan) -> str | None:
    """Return the reason why there are no drafts; None if there are."""
    if (why := _unwanted(info, config)) or (why := _obstacle(info, config, plan)):
        return why
    if has_state(info) and not plan.n_snapshots:
        return "snapshots of recurrent state have no room: use a smaller --parallel or --ctx-size, or free memory"
    return None


def _unwanted(info: ModelInfo, config: Configure) -> str | None:
    """Return the flag by which there are to be no drafts."""
    if config.deterministic:
        return "with --deterministic there are none"
    is_wanted = config.prompt_lookup != "off" or config.draft is not None or info.loads_heads
    return None if is_wanted else "--prompt-lookup is off, and neither --draft-model nor --mtp drafts"


def _obstacle(info: ModelInfo, config: Configure, plan: Plan) -> str | None:
    """Return the reason why wrong drafts cannot be taken back, or must not be tried."""
    name = info.architecture
    if name in (*OF_SEVERAL_PARTS, *HYBRIDS_OF_SEVERAL_PARTS):
        return f"{name} keeps an index for its KV cells, which cannot be cut"
    if not has_state(info):
        is_cut = plan.swa_full or info.windows is None
        return None if is_cut else "small sliding windows cannot be cut: use --swa-full on"
    if not has_checkpoints(info):
        return f"{name} has recurrent state beside sliding windows, which cannot be cut together"
    if name not in WITH_SNAPSHOTS:
        return f"llama.cpp keeps no snapshots of {name}'s recurrent state, and without them it cannot be cut"
    return _of_settings(config, plan)


def _of_settings(config: Configure, plan: Plan) -> str | None:
    """Return why there are no drafts by settings alone, in a model whose states have snapshots."""
    if config.must_be_invariant:
        return "with --batch-invariant on there are none: recurrent layers compute several tokens otherwise than one"
    if plan.ubatch_size < MIN_UBATCH:
        return f"snapshots of recurrent state need --ubatch-size {MIN_UBATCH} or more (got {plan.ubatch_size})"
    n_batch = MIN_UBATCH + plan.parallel
    if config.batch_size < n_batch:
        return f"snapshots of recurrent state need --batch-size {n_batch} or more (got {config.batch_size})"
    return None
