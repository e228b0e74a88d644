"""The frames about a model and its engine: the facts once it is loaded, and what it reports later."""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from worker.wire.chat_format import HERMES, ChatFormat
from worker.wire.encoding import Count, doc
from worker.wire.jobs import Frame

RowCosts = tuple[tuple[int, float], ...]
"""(tokens in a decode step, seconds it takes)."""
PaddedWidths = tuple[tuple[int, int], ...]
"""(tokens in a decode step, the number that it is padded to)."""
Speeds = tuple[tuple[str, tuple[float, ...]], ...]
"""(type of weights, the speed of our kernels over ggml's for 1, 8 and 64 rows; empty if they were not timed)."""


class KernelsChosen(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of the types of the model's matrices that ours can multiply."""

    why: str = ""
    ours: Speeds = ()
    stock: Speeds = ()


class AskResidency(Frame, frozen=True, kw_only=True):
    """Asks whether the model is still on the GPU. The intake thread answers with a Residency while steps run on."""


class Progress(Frame, frozen=True, kw_only=True):
    """Load progress, 0..100, which is also the heartbeat while loading: a repeated percent shows that the load still
    moves."""

    percent: int


class Warned(Frame, frozen=True, kw_only=True):
    """Something has failed in the engine that ends no job; operators read it in the log."""

    text: str


class OffPlan(msgspec.Struct, frozen=True, array_like=True):
    """A device on which more or less memory is allocated than was planned."""

    device: str
    planned_bytes: int
    allocated_bytes: int
    """The bytes that the library reports as allocated there."""
    taken_bytes: int | None = None
    """The bytes by which the device's free memory fell during the load; None if that memory is not the device's own, or
    did not change."""

    @property
    def difference_bytes(self) -> int:
        """The difference between the planned and the held bytes, by the account with the larger one."""
        held = (self.allocated_bytes, self.allocated_bytes if self.taken_bytes is None else self.taken_bytes)
        return max(abs(n_bytes - self.planned_bytes) for n_bytes in held)


class Offload(msgspec.Struct, frozen=True, array_like=True):
    """The place of a loaded model's layers. The output layer counts as one, as in llama.cpp."""

    gpu_layers: int = 0
    layers_total: int = 0
    tensor_split: tuple[float, ...] = ()
    """The share of the model that each GPU holds; empty if one device holds all of it."""
    off_plan: tuple[OffPlan, ...] = ()


_KEY = "kwargs."


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a model file that clients ask for."""

    n_ctx_train: int = 0
    n_params: int = 0
    file_bytes: int = 0
    bos_token: str | None = None
    """Its name, as in `<s>`; None if the vocabulary has none."""
    eos_token: str | None = None
    pad_token: str | None = None
    can_infill: bool = False
    """True if the vocabulary has the tokens that mark a gap in a text."""
    chat_template: str | None = None
    """The Jinja template in force; None if conversations cannot be answered."""
    chat_template_caps: tuple[str, ...] = ()
    """The features that the template supports: system, tools, …, and `kwargs.NAME` for each variable that it reads."""
    chat_format: ChatFormat = HERMES
    """The notation of reasoning and calls."""
    can_limit_reasoning: bool = False
    """True if tokens of their own divide reasoning from the answer, so that a limit of the reasoning can be kept."""

    @property
    def template_keys(self) -> frozenset[str]:
        """The variables that the template reads, besides the messages."""
        return frozenset(cap.removeprefix(_KEY) for cap in self.chat_template_caps if cap.startswith(_KEY))


class DraftModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The model of `--draft-model`. It drafts tokens, and the served model checks them."""

    name: str
    quant_kind: str
    device: Annotated[str, doc("Device of the draft model, e.g. `cpu:0` or `cuda:1`.")]
    memory_bytes: Annotated[
        Count,
        doc("Memory of the draft model. The part on the served model's device is also in the worker's `memory_bytes`."),
    ]


class HeadFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The model's own next-token head (MTP), which `--mtp` loads. It drafts tokens, and the model checks them."""

    off_because: Annotated[str | None, doc("The reason why it does not draft, with the remedy if there is one.")] = None
    memory_bytes: Annotated[
        Count, doc("Memory of its cells, buffers and rows, which is part of the worker's `memory_bytes`.")
    ] = 0


class Drafts(msgspec.Struct, frozen=True, kw_only=True):
    """Draft tokens, which a step verifies together with the next token."""

    off_because: Annotated[str | None, doc("The reason why there are none, with the remedy if there is one.")] = None
    snapshots: Annotated[
        Count, doc("Last tokens of a job that can be taken from its recurrent state; 0 if the model has none.")
    ] = 0
    snapshot_bytes: Annotated[Count, doc("Memory of the states after these tokens, of all jobs together.")] = 0
    next_token_head: Annotated[HeadFacts | None, doc("The model's own next-token head; null if its file has none.")] = (
        None
    )


class BatchInvariance(msgspec.Struct, frozen=True, kw_only=True):
    """The state of `--batch-invariant`, with which a job's numbers do not depend on other jobs in its batch."""

    kept: Annotated[bool, doc("True if it is on. `determinism` has the verdict.")] = False
    why: Annotated[str, doc("The flag that turns it on or off, or the reason of `auto`.")] = ""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that the self-test compared with the same tokens computed alone."""

    prompts: Count = 0
    widths: Annotated[tuple[Count, ...], doc("Numbers of rows in decode steps, one row per job.")] = ()
    ways: Annotated[
        tuple[str, ...],
        doc("Other ways to compute a prompt and its answer, named as in `determinism_differences`."),
    ] = ()
    row_multiple: Annotated[
        Count, doc("Decode steps are filled up to a multiple of this many rows; above 1 only with `--deterministic`.")
    ] = 1
    most_rows: Annotated[
        Count, doc("Rows that are decoded at once; 0: all rows of a step. Above 0 only with `--deterministic`.")
    ] = 0


class Determinism(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of a rule, or of the self-test: do the same tokens give the same bits of logits in every batch?"""

    is_same: bool
    differences: tuple[str, ...] = ()
    tried: Tried | None = None


class Amx(msgspec.Struct, frozen=True, kw_only=True):
    """Intel's AMX, whose instructions multiply tiles of two matrices."""

    processor: Annotated[bool, doc("True if the processor has AMX.")] = False
    build: Annotated[bool, doc("True if llama.cpp was compiled with AMX and the system allows it.")] = False
    tile_bytes: Annotated[Count, doc("Bytes of weights in AMX tiles; 0 if all weights are on a GPU.")] = 0


class Numerics(msgspec.Struct, frozen=True, kw_only=True):
    """Two workers with the same file and equal Numerics compute the same bits for the same steps.

    Facts that change no number are left out, such as the number of threads if they share no sum.
    """

    device: str
    """`cpu`, whose model name changes no number, or the backend and the names of its GPUs: `cuda NVIDIA L4`."""
    gpu_layers: int
    """The number of layers on GPUs, the output layer included; 0 on a CPU."""
    split_mode: str
    """The word of --split-mode; `none` if one device has the model."""
    gpu_shares: str
    """The parts of the model on the GPUs, in percent, if the GPUs differ or have parts of each matrix."""
    cache_type_k: str
    cache_type_v: str
    flash_attn: bool
    swa_full: bool | None
    """True if layers with a sliding window have as many cells as others; None if no layer has one."""
    repacked: bool
    """True if the CPU's kernels for repacked weights compute."""
    tiles: bool = False
    """True if some of these weights lie in tiles of Intel's AMX; also False in reports without this fact."""
    left_to_ggml: tuple[str, ...] = ()
    """The types of weights that ggml's CPU kernels multiply although ours could; also () in reports without this fact.
    """
    threads: int | None
    """The number of CPU threads if attention divides a sum among them; otherwise None."""
    cpu_features: tuple[str, ...]
    """The CPU features that ggml's code uses, in its own words."""
    llama_cpp: str
    """The version of the binding, and ggml's."""
    llama_cpp_sha256: str
    """The digest of llama.cpp's libraries: another compiler or another flag is another build."""

    def differences(self, proved: "Numerics") -> Iterator[str]:
        """Yield a line for each fact that differs from a report's, which begins with the fact's name."""
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(proved, name)
            if mine != theirs:
                yield f"{name}: {_shown(mine, theirs)} here, {_shown(theirs, mine)} in the report"

    def shown(self) -> Iterator[tuple[str, str]]:
        """Yield (name, value) of every fact, for people."""
        for name in self.__struct_fields__:
            yield name, _shown(getattr(self, name), ())


def _shown(value: object, other: object) -> str:
    """Return a fact as a person reads it; of a list only the items that `other` lacks."""
    match value:
        case tuple():
            others = other if isinstance(other, tuple) else ()
            return " ".join(each for each in value if each not in others) or "none more"
        case bool():
            return "on" if value else "off"
        case None | "":
            return "of no effect"
        case _:
            return str(value)


Attention = Literal["gpu", "cpu", "both"]
"""The place where attention is computed; `both` means that of some layers on each."""


class Loaded(Frame, frozen=True, kw_only=True):
    """The model is in memory, warmed up, and steps can run."""

    name: str
    """The file's general.name or, if it has none, the stem of the file name."""
    quant_kind: str
    tokenizer_kind: str
    vocab_size: int
    context_length: int
    """N of docs/protocol.md#command-line: the number of tokens that one job may use, min(cells, trained length)."""
    n_cells: int
    parallel: int
    resident: bool
    backend: Literal["cpu", "cuda", "metal", "vulkan"]
    device_index: int
    device_name: str
    memory_architecture: Literal["vram-only", "unified", "host"]
    memory_bytes: int
    """The bytes of weights, KV and compute buffers on the device, or on all that share the model, measured after the
    load.
    """
    prefill_chunk: int
    row_costs: RowCosts = ()
    """The times of decode steps at warm-up, ascending; empty if they were not measured and there are no drafts."""
    switch_s: float = 0.0
    """The extra seconds of a step that has another width than those before and after it; 0 on a CPU."""
    padded_widths: PaddedWidths = ()
    """The widths of decode steps that are padded because a wider step takes less time. `row_costs` has their padded
    costs."""
    batch_size: int = 0
    """The largest number of tokens in one decode call: more than was asked for if the slots need more; 0 if the engine
    does not say."""
    prefix_cache_bytes: int = 0
    """The limit in force; 0 if the model's memory cannot be cut, or if the prefix cache is off."""
    prefix_cache_off: str | None = None
    """The reason why the prefix cache is off, and what to do about it; None if it is on."""
    checkpoint_bytes: int = 0
    """The bytes of a copy of one sequence's recurrent state; 0 if the model has none, or it cannot be copied."""
    checkpoint_stride: int = 0
    """The distance in tokens at which such copies are kept of a long prompt; 0 if none are."""
    drafts: Drafts = Drafts()
    swa_full: bool | None = None
    """True if layers with a sliding window have as many cells as others; None if no layer has one."""
    offload: Offload = Offload()
    step_s: float = 0.0
    """The seconds of the longest step, a prefill step while no job generates, by the times of the warm-up."""
    model: ModelFacts = ModelFacts()
    draft: DraftModelFacts | None = None
    places: bytes = b""
    """The memory plan of the model and its draft model, in the words of models/loading/places.py."""
    numerics: Numerics | None = None
    """The numerics, if Configure asked for them."""
    amx: Amx = Amx()
    batch_invariance: BatchInvariance = BatchInvariance()
    determinism: Determinism | None = None
    """None if neither a rule nor the self-test has a verdict."""
    kernels: KernelsChosen = KernelsChosen()
    attention: Attention | None = None
    """None where no layer has KV cells."""


class LoadFailed(Frame, frozen=True, kw_only=True):
    """The engine exits after this frame. `code` is a StartupError's code."""

    code: str
    message: str
    needed_bytes: int | None = None
    available_bytes: int | None = None
    device: str | None = None
    """The device whose memory is too small."""


class PrefixCacheFound(Frame, frozen=True, kw_only=True):
    """The saved cells of earlier engines that this engine has found."""

    n_parts: int
    n_tokens: int
    n_bytes: int
    n_dropped: int = 0
    """The number of further parts that were dropped: damaged, made differently, or involved in a crash."""
    dropped_because: str | None = None
    """The reason for the first of these."""


class Residency(Frame, frozen=True, kw_only=True):
    """The current place of the model, by the device's own figures."""

    is_resident: bool
    memory_bytes: int
    """The largest number of bytes of the model that the device can hold: those of Loaded, or the device's memory in use
    if that is less."""
