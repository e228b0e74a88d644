"""`llorch-worker inspect MODEL`: what a GGUF holds, and the memory serving it takes.

Only headers are read. Once the file has been checked, llama.cpp's dry run says what it takes
(models/loading/places.py).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import rich_click as click

from worker.commands.places import present, where
from worker.commands.tables import mib, print_json, print_table
from worker.config.engine import configure
from worker.config.engine_settings import Configure
from worker.config.settings import Settings
from worker.formats.render.escapes import ControlNames
from worker.formats.render.sandbox import BrokenTemplate
from worker.formats.render.template import ChatTemplates
from worker.formats.tool_format import chat_format
from worker.host import available_memory_bytes
from worker.models.facts.info import ModelInfo, bytes_by_type, read_info
from worker.models.plan.abilities import drafts_off, heads_off, obstacle
from worker.models.plan.memory import checkpoint_stride, prefix_cache_bytes, snapshot_bytes
from worker.models.plan.placement import Placement

_NO_LIMIT_BYTES = 2**63

Estimate = Callable[[Configure], Placement]
"""The place that a configuration would have if memory were no limit, but for the default number of cells."""


@dataclass(frozen=True, slots=True)
class TypeRow:
    """The tensors of one type."""

    type: str
    tensors: int
    bytes: int
    share: float
    """Its share of all weights, 0..1."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """An estimate for the default settings in this machine's main memory. `available_bytes` of it are free now; they
    bound the default number of KV cells, and nothing else here."""

    weights_bytes: int
    repacked_bytes: int
    """The weights that are laid out anew for this processor's kernels."""
    is_mapped: bool
    """True if the file is mapped, so that all workers share its pages; else it is read."""
    kv_bytes: int
    kv_cells: int
    kv_small_windows_bytes: int | None
    """Instead of `kv_bytes` with `--swa-full off`; null where no layer has a sliding window."""
    compute_bytes: int
    """The compute buffers, with the logits that are kept to be read."""
    total_bytes: int
    prefix_cache_bytes: int
    """The memory for the prefix cache, beyond the total, if there is room for twice as much; 0 if nothing can be
    cached."""
    prefix_cache_off: str | None
    """The reason why nothing can be cached."""
    checkpoint_bytes: int
    """The bytes of a copy of one job's recurrent state."""
    checkpoint_stride: int
    """The distance of such copies in tokens; 0 if there are none."""
    drafts_off: str | None
    """The reason why no tokens are drafted."""
    next_token_head: str | None
    """The effect of `--mtp` on the file's next-token head; null if it has none."""
    snapshots: int
    """The number of a job's last tokens that can be taken from its recurrent state."""
    snapshot_bytes: int
    """The part of `kv_bytes` that the states after these tokens take."""
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """The facts that are shown of one model, in the order of the output."""

    path: str
    files: int
    file_bytes: int
    gguf_version: int
    architecture: str
    name: str
    quantisation: str
    license: str | None
    context_length: int
    layers: int
    window_layers: int
    """The number of these layers that have a sliding window."""
    window_length: int
    """Tokens of that window; 0 where no layer has one."""
    embedding_length: int
    vocabulary: int
    tokenizer: str
    vocabulary_remarks: tuple[str, ...]
    """Faults of the vocabulary with which it can still be served."""
    has_chat_template: bool
    chat_format: str | None
    """The form of calls and reasoning, and its origin; null without a template that can be used."""
    tensor_types: tuple[TypeRow, ...]
    memory: MemoryUse


@click.command
@click.argument("reference", metavar="MODEL")
@where
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of tables.")
def inspect(reference: str, models_dir: Path, catalog: Path | None, *, as_json: bool) -> None:
    """Show what the GGUF of MODEL holds and the memory it needs.

    MODEL has the forms of --model of `serve`: a file, a name in the catalogue, org/repo:QUANT. Nothing is downloaded.
    The file is checked as `serve` checks it; if it is bad, one line says why, and the exit code is 1.
    """
    info = read_info(present(reference, models_dir, catalog))
    from worker.models.loading.places import places_of  # noqa: PLC0415 - this loads llama.cpp

    available_bytes = available_memory_bytes()
    inspection = inspection_of(
        info, available_bytes, lambda config: places_of(config, available_bytes, is_estimate=True).served
    )
    if as_json:
        print_json(inspection)
        return
    for remark in inspection.vocabulary_remarks:
        click.echo(f"vocabulary: {remark}", err=True)
    types = [(row.type, str(row.tensors), mib(row.bytes), f"{row.share:.1%}") for row in inspection.tensor_types]
    print_table(["", ""], _facts(inspection))
    print_table(["tensor type", ">tensors", ">bytes", ">share"], types)
    print_table(["estimated memory", ">bytes", ""], _memory_cells(inspection.memory))


def inspection_of(info: ModelInfo, available_bytes: int, estimate: Estimate) -> Inspection:
    """All that is shown of a model. Raises: as `estimate`."""
    counts = Counter(tensor.type_name for tensor in info.tensors)
    return Inspection(
        path=str(info.path),
        files=len(info.part_paths),
        file_bytes=info.file_bytes,
        gguf_version=info.version,
        architecture=info.architecture,
        name=info.name,
        quantisation=info.quant_kind,
        license=info.license,
        context_length=info.context_length,
        layers=info.block_count,
        window_layers=info.windows.n_layers if info.windows else 0,
        window_length=info.windows.length if info.windows else 0,
        embedding_length=info.embedding_length,
        vocabulary=info.vocab_size,
        tokenizer=info.tokenizer_kind,
        vocabulary_remarks=info.vocabulary_remarks,
        has_chat_template=info.chat_template is not None,
        chat_format=_chat_format(info),
        tensor_types=tuple(
            TypeRow(kind, counts[kind], n_bytes, n_bytes / max(1, info.weights_bytes))
            for kind, n_bytes in bytes_by_type(info.tensors)
        ),
        memory=_memory(info, available_bytes, estimate),
    )


def _chat_format(info: ModelInfo) -> str | None:
    if info.chat_template is None:
        return None
    tokens, own = dict.fromkeys(("bos_token", "eos_token", "pad_token"), ""), info.chat_template_for_tools
    try:
        chat = ChatTemplates(info.chat_template, own, names=ControlNames(()), tokens=tokens, variables={})
    except BrokenTemplate:
        return None
    return chat_format(chat.for_tools).title


def _memory(info: ModelInfo, available_bytes: int, estimate: Estimate) -> MemoryUse:
    """The memory with the default settings."""
    config = configure(Settings(device="cpu"), info.path)
    placement = estimate(config)
    plan, need, host = placement.plan, placement.need, placement.host
    why_off = obstacle(info, swa_full=plan.swa_full, parallel=plan.parallel)
    asked_bytes = 0 if why_off else Settings().prefix_cache_bytes
    head = heads_off(info, configure(Settings(mtp=True), info.path)) or "--mtp drafts with it"
    small = replace(config, swa_full="off", ctx_size=plan.n_cells, parallel=plan.parallel)
    return MemoryUse(
        weights_bytes=host.weights_bytes,
        repacked_bytes=placement.weights_in_main.repacked,
        is_mapped=placement.weights_in_main.is_mapped,
        kv_bytes=host.kv_bytes,
        kv_cells=plan.n_cells,
        kv_small_windows_bytes=estimate(small).host.kv_bytes if info.windows else None,
        compute_bytes=host.compute_bytes,
        total_bytes=host.total_bytes,
        prefix_cache_bytes=prefix_cache_bytes(asked_bytes, plan, need, _NO_LIMIT_BYTES),
        prefix_cache_off=why_off,
        checkpoint_bytes=need.checkpoint_bytes,
        checkpoint_stride=checkpoint_stride(plan, need),
        drafts_off=drafts_off(info, config, plan),
        next_token_head=head if info.n_mtp_blocks else None,
        snapshots=plan.n_snapshots,
        snapshot_bytes=snapshot_bytes(plan, need),
        available_bytes=available_bytes,
    )


def _facts(inspection: Inspection) -> list[tuple[str, str]]:
    parts = f" in {inspection.files} files" if inspection.files > 1 else ""
    layers = f"{inspection.layers}, {inspection.embedding_length} wide"
    if inspection.window_layers:
        layers += f", {inspection.window_layers} with a sliding window of {inspection.window_length} tokens"
    return [
        ("file", inspection.path),
        ("size", f"{mib(inspection.file_bytes)}{parts}, GGUF version {inspection.gguf_version}"),
        ("architecture", inspection.architecture),
        ("name", inspection.name),
        ("quantisation", inspection.quantisation),
        ("licence", inspection.license or "not stated"),
        ("context", f"{inspection.context_length} tokens"),
        ("layers", layers),
        ("vocabulary", f"{inspection.vocabulary} tokens, {inspection.tokenizer}"),
        ("chat template", "yes" if inspection.has_chat_template else "no"),
        ("calls", inspection.chat_format or "none"),
    ]


def _memory_cells(memory: MemoryUse) -> list[tuple[str, str, str]]:
    repacked = f"{mib(memory.repacked_bytes)} repacked for this processor, " if memory.repacked_bytes else ""
    cells = f"{memory.kv_cells} cells"
    if memory.snapshots:
        cells += f"; {mib(memory.snapshot_bytes)} to take back up to {memory.snapshots} draft tokens of a job"
    if memory.kv_small_windows_bytes is not None:
        cells += f"; {mib(memory.kv_small_windows_bytes)} with --swa-full off"
    state, stride = mib(memory.checkpoint_bytes), memory.checkpoint_stride
    states = f"; a recurrent state takes {state}, one each {stride} tokens of a long prompt" if stride else ""
    cached = memory.prefix_cache_off or f"at most, beyond the total{states}"
    origin = f"{repacked}{'mapped' if memory.is_mapped else 'read'} from the file"
    return [
        ("weights", mib(memory.weights_bytes), origin),
        ("KV cache", mib(memory.kv_bytes), cells),
        ("compute buffers", mib(memory.compute_bytes), "about"),
        ("total", mib(memory.total_bytes), "with the default settings"),
        ("prefix cache", mib(memory.prefix_cache_bytes), cached),
        *([("drafts", "0", memory.drafts_off)] if memory.drafts_off else []),
        *([("next-token head", "", memory.next_token_head)] if memory.next_token_head else []),
        ("available here", mib(memory.available_bytes), "main memory, now"),
    ]
