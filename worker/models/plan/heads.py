"""Next-token heads (MTP): the layers at the end of a file that predict the token after the next, as a draft source.

Owns whether a model's head drafts, or the reason why not. Pure; it reads the model info and the configuration alone, so
that `inspect` says what `serve` will say.
"""

from dataclasses import replace

from worker.config.engine_settings import Configure
from worker.models.facts.info import ModelInfo, block_of
from worker.models.plan.memory import has_state
from worker.models.upstream.architectures import NEEDED_BY_A_HEAD, WITH_A_HEAD, WITH_SNAPSHOTS


def heads_off(info: ModelInfo, config: Configure) -> str | None:
    """Return the reason why the model's head does not draft; None if it does, by the file and the settings."""
    if not info.n_mtp_blocks:
        return "the file has no next-token head"
    if (obstacle := _obstacle(info)) is not None:
        return obstacle
    if config.deterministic:
        return "with --deterministic nothing is drafted"
    return None if config.mtp else "--mtp would load it"


def _obstacle(info: ModelInfo) -> str | None:
    name = info.architecture
    if has_state(info) and name not in WITH_SNAPSHOTS:
        return f"llama.cpp keeps no snapshots of {name}'s recurrent state, so wrong drafts could not be taken back"
    if name not in WITH_A_HEAD:
        return f"the worker does not draft with the heads of {name}"
    if info.n_mtp_blocks > 1:
        return f"the file has {info.n_mtp_blocks} next-token heads, and the worker drafts with one"
    block = info.block_count - 1
    names = {tensor.name for tensor in info.tensors if block_of(tensor.name) == block}
    lacking = [name for name in NEEDED_BY_A_HEAD if f"blk.{block}.{name}" not in names]
    return f"the file says that it has a next-token head, but lacks blk.{block}.{lacking[0]}" if lacking else None


def with_heads(info: ModelInfo, config: Configure) -> ModelInfo:
    """Return the facts of the model as it is to be loaded: with its head if that drafts."""
    return info if heads_off(info, config) is not None else replace(info, loads_heads=True)
