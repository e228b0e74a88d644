"""The checked facts of one GGUF model, and the checks of a file before llama.cpp sees it (docs/protocol.md#gguf-files).

Owns the meaning of the metadata and the rule for split files. The header is walked in the mapped file, in some tens of
milliseconds; no weights are read.
"""

import math
import mmap
import re
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from worker.errors import BadModelFile, ModelNotFound
from worker.models.facts.gguf import (
    DEFAULT_ALIGNMENT,
    Header,
    Metadata,
    ReadAllowance,
    Tensor,
    read_header,
)
from worker.models.facts.spelling import Gaps
from worker.models.facts.vocabulary import WHOLE_ARRAYS, check_vocabulary
from worker.models.upstream.architectures import (
    ATTENTION_FREE,
    EXAONE_LAYERS,
    LLAMA_LENGTH,
    OTHER_SHAPES,
    SMALLTHINKER_LENGTH,
    WINDOW_PATTERNS,
    WINDOWS_FLAGGED_IN_THE_FILE,
    WINDOWS_OF_ALL_ATTENTION,
)
from worker.models.upstream.ggml_types import FILE_TYPES

MAX_BLOCKS = 1_000
MAX_EMBEDDING = 1 << 20
MAX_HEADS = 1 << 16
MAX_CONTEXT = 2**31 - 1
MAX_PARTS = 1_000
"""Files of one model; opening each takes some 100 µs. Those of the largest models are some hundred."""

NO_MODELS = ("adapter", "imatrix", "mmproj")
"""Values of general.type that gguf files beside a model have."""


TOKENIZER_KINDS = {
    "gpt2": "gguf-bpe",
    "gemma4": "gguf-bpe",
    "hybriddna": "gguf-bpe",
    "whitespace": "gguf-bpe",
    "llama": "gguf-spm",
    "bert": "gguf-wpm",
    "t5": "gguf-ugm",
}
"""tokenizer.ggml.model → tokenizer_kind, as in llama_vocab::impl::load; other names are their own kind."""

_PART_NAME = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_BLOCK = re.compile(r"blk\.(\d+)\.")
_GUESSED = 1024
"""LLAMA_FTYPE_GUESSED: the flag of a file type that was not written but inferred."""
_INPUTS = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.")
"""Tensors whose rows are looked up."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The sliding windows of the layers that have one; at least one layer has."""

    length: int
    """The number of tokens that these layers look back on."""
    in_layer: tuple[bool, ...]
    key_length: int
    value_length: int
    """Numbers per head and token in the K and in the V cache of these layers."""

    @property
    def n_layers(self) -> int:
        return sum(self.in_layer)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    path: Path
    part_paths: tuple[Path, ...]
    """All files of the model, the first being `path`."""
    file_bytes: int
    version: int
    architecture: str
    name: str
    """`general.name`, else the stem of the file's name."""
    quant_kind: str
    """The name of `general.file_type` (`Q4_K_M`), else the tensor type that holds most bytes."""
    context_length: int
    """The length of texts, in tokens, that the model was trained on."""
    block_count: int
    embedding_length: int
    head_counts: tuple[int, ...]
    head_counts_kv: tuple[int, ...]
    """KV heads per layer; 0 in layers without attention."""
    key_length: int
    value_length: int
    """Numbers per head and token in the K and in the V cache."""
    vocab_size: int
    tokenizer_model: str
    license: str | None
    tensors: tuple[Tensor, ...]
    chat_template: str | None = None
    chat_template_for_tools: str | None = None
    """The template named tool_use."""
    alignment: int = DEFAULT_ALIGNMENT
    """Tensors begin at multiples of it in all files."""
    n_mtp_blocks: int = 0
    """The number of layers at the end of `block_count` that predict the tokens after the next. llama.cpp counts them,
    but does not load them unless it is asked to."""
    loads_heads: bool = False
    """True if these layers are to be loaded, too (models/plan/abilities.py)."""
    windows: Windows | None = None
    vocabulary_remarks: tuple[str, ...] = ()
    """Faults of the vocabulary with which it can still be served, a sentence each."""
    gaps: Gaps | None = None

    @property
    def tokenizer_kind(self) -> str:
        """gguf-bpe, gguf-spm, gguf-wpm or gguf-ugm, else gguf- and the model's own name for it."""
        return TOKENIZER_KINDS.get(self.tokenizer_model, f"gguf-{self.tokenizer_model}")

    @property
    def weights_bytes(self) -> int:
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def loaded_tensors(self) -> tuple[Tensor, ...]:
        """The tensors that computing the next token needs, and those of heads if they are to be loaded."""
        if self.loads_heads:
            return self.tensors
        left_out = range(self.block_count - self.n_mtp_blocks, self.block_count)
        return tuple(tensor for tensor in self.tensors if block_of(tensor.name) not in left_out)

    @property
    def layer_tensors(self) -> tuple[Tensor, ...]:
        """Those of them that layers compute with, and not those whose rows are looked up, which is done in main memory
        wherever the layers are. A tied embedding is one of both.
        """
        is_tied = all(tensor.name != "output.weight" for tensor in self.tensors)
        tied = ("token_embd.weight",) if is_tied else ()
        return tuple(one for one in self.loaded_tensors if not one.name.startswith(_INPUTS) or one.name in tied)

    @property
    def tied_bytes(self) -> int:
        """The bytes of an embedding that is the output's matrix as well."""
        return sum(tensor.n_bytes for tensor in self.layer_tensors if tensor.name.startswith(_INPUTS))


def block_of(tensor_name: str) -> int | None:
    """The repeating layer that a tensor belongs to, if it belongs to one."""
    match = _BLOCK.match(tensor_name)
    return int(match[1]) if match else None


def read_info(path: Path) -> ModelInfo:
    """Read and check a model: the file at `path`, and its other parts where it is split.

    Raises: ModelNotFound, BadModelFile: one line with what, where in the file and why.
    """
    allowance = ReadAllowance()
    header, file_bytes = _read_file(path, allowance)
    part_paths = _part_paths(header.metadata)
    tensors, alignment = list(header.tensors), header.alignment
    for number, part in enumerate(part_paths[1:], start=1):
        part_header, part_bytes = _read_file(part, allowance)
        split_no = part_header.metadata.number("split.no", 0xFFFF, low=0, kind="u16")
        if split_no != number:
            raise BadModelFile(
                f"{part}: metadata key 'split.no' is {split_no}, must be {number} in a file of this name"
            )
        tensors += part_header.tensors
        # Both are powers of two.
        alignment = min(alignment, part_header.alignment)
        file_bytes += part_bytes
    for name, n_times in Counter(tensor.name for tensor in tensors).most_common(1):
        if n_times > 1:
            raise header.metadata.error(f"tensor {name!r} appears in {n_times} of its parts")
    return replace(_info_of(header, part_paths, file_bytes, tuple(tensors)), alignment=alignment)


def read_words(path: Path) -> tuple[Gaps | None, str | None, str | None]:
    """The gaps of a file's vocabulary, its chat template and the one named tool_use; it may have no weights.

    Raises: ModelNotFound, BadModelFile.
    """
    header, _ = _read_file(path, ReadAllowance())
    _, gaps = check_vocabulary(header.metadata)
    return gaps, *_chat_templates(header.metadata)


def _chat_templates(metadata: Metadata) -> tuple[str | None, str | None]:
    return (
        metadata.text("tokenizer.chat_template") or None,
        metadata.remark("tokenizer.chat_template.tool_use") or None,
    )


def _read_file(path: Path, allowance: ReadAllowance) -> tuple[Header, int]:
    try:
        # Asked before opening, which would wait for ever on a named pipe.
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise BadModelFile(f"{path}: a directory, not a GGUF file: name the .gguf file in it")
        if not stat.S_ISREG(mode):
            raise BadModelFile(f"{path}: not a regular file")
        with path.open("rb") as file:
            if file.seek(0, 2) == 0:
                raise BadModelFile(f"{path}: the file is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return read_header(data, path, allowance, whole=WHOLE_ARRAYS), len(data)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFound(f"{path}: no such file") from None
    except OSError as error:
        raise BadModelFile(f"{path}: cannot be read: {error.strerror}") from None


def _part_paths(metadata: Metadata) -> tuple[Path, ...]:
    """The files of the model, named as llama_split_path names them. Raises: BadModelFile for a part not the first."""
    count = metadata.number("split.count", MAX_PARTS, default=1, low=0, kind="u16")
    if count <= 1:
        return (metadata.path,)
    number = metadata.number("split.no", count - 1, low=0, kind="u16") + 1
    name = _PART_NAME.fullmatch(metadata.path.name)
    expected = f"-{number:05d}-of-{count:05d}.gguf"
    if name is None or not metadata.path.name.endswith(expected):
        raise metadata.error(f"part {number} of {count}, so its name must end in {expected}")
    parts = tuple(metadata.path.with_name(f"{name['prefix']}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1))
    if number != 1:
        raise metadata.error(f"part {number} of {count}: name the first one, {parts[0].name}")
    for part in parts:
        if not part.exists():
            raise metadata.error(f"part 1 of {count}; {part.name} is missing from the same folder")
    return parts


def _info_of(header: Header, part_paths: tuple[Path, ...], file_bytes: int, tensors: tuple[Tensor, ...]) -> ModelInfo:
    metadata = header.metadata
    architecture = _architecture(metadata)
    block_count = metadata.number(f"{architecture}.block_count", MAX_BLOCKS)
    embedding_length = metadata.number(f"{architecture}.embedding_length", MAX_EMBEDDING)
    heads, heads_kv = _head_counts(metadata, architecture, block_count)
    # llama.cpp divides by the first layer's heads; hybrid models with none there write key_length.
    head_length = embedding_length // (heads[0] or max(heads)) if any(heads) else 0
    if any(heads) and head_length == 0:
        raise metadata.error(f"{max(heads)} attention heads for an embedding length of {embedding_length}")
    vocab_size = metadata.n_strings("tokenizer.ggml.tokens")
    _check_embedding(metadata, tensors, embedding_length, vocab_size)
    key_length = metadata.number(f"{architecture}.attention.key_length", MAX_HEADS, default=head_length)
    check_computable(metadata, architecture, tensors)
    value_length = metadata.number(f"{architecture}.attention.value_length", MAX_HEADS, default=head_length)
    if metadata.number(f"{architecture}.attention.key_length_mla", MAX_HEADS, low=0, default=0):
        value_length = 0  # latent attention makes V of the K cells
    vocabulary_remarks, gaps = check_vocabulary(metadata)
    chat_template, chat_template_for_tools = _chat_templates(metadata)
    n_mtp_blocks = metadata.number(f"{architecture}.nextn_predict_layers", block_count, low=0, default=0)
    file_type = metadata.number("general.file_type", 2**32 - 1, low=0, default=-1)
    return ModelInfo(
        path=metadata.path,
        part_paths=part_paths,
        file_bytes=file_bytes,
        version=header.version,
        architecture=architecture,
        name=metadata.text("general.name") or metadata.path.stem,
        quant_kind=FILE_TYPES.get(file_type & ~_GUESSED) or bytes_by_type(tensors)[0][0],
        context_length=metadata.number(f"{architecture}.context_length", MAX_CONTEXT),
        block_count=block_count,
        embedding_length=embedding_length,
        head_counts=heads,
        head_counts_kv=heads_kv,
        key_length=key_length,
        value_length=value_length,
        vocab_size=vocab_size,
        tokenizer_model=metadata.required_text("tokenizer.ggml.model"),
        license=metadata.remark("general.license"),
        tensors=tensors,
        chat_template=chat_template,
        chat_template_for_tools=chat_template_for_tools,
        n_mtp_blocks=n_mtp_blocks,
        windows=_windows_of(metadata, architecture, heads_kv, n_mtp_blocks, (key_length, value_length)),
        vocabulary_remarks=vocabulary_remarks,
        gaps=gaps,
    )


def _architecture(metadata: Metadata) -> str:
    """The name. Raises: BadModelFile where llama.cpp would load it, and abort in the first step or answer nothing."""
    kind = metadata.remark("general.type")
    if kind in NO_MODELS:
        raise metadata.error(f"metadata key 'general.type' is {kind!r}: a part or a by-product of a model, not a model")
    architecture = metadata.required_text("general.architecture")
    if not re.fullmatch(r"[\w.-]{1,64}", architecture, re.ASCII):
        raise metadata.error(f"metadata key 'general.architecture' is not a name: {architecture[:64]!r}")
    why = OTHER_SHAPES.get(architecture)
    if why is None and metadata.flag(f"{architecture}.attention.causal") is False:
        why = "its tokens look at later ones, by attention.causal"
    if why is not None:
        raise metadata.error(
            f"its architecture is {architecture}, which cannot be served: {why}. Use a model that generates text "
            "token by token"
        )
    return architecture


def _head_counts(metadata: Metadata, architecture: str, n_layers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Query heads and KV heads per layer; layers without attention have 0 (hybrid models)."""
    key, none = f"{architecture}.attention.head_count", (0,) * n_layers
    if architecture in ATTENTION_FREE:
        return metadata.per_layer(key, n_layers, MAX_HEADS, default=none), none
    heads = metadata.per_layer(key, n_layers, MAX_HEADS)
    if not any(heads):
        raise metadata.error(f"metadata key {key!r} is 0, must be in 1..{MAX_HEADS}")
    heads_kv = metadata.per_layer(f"{key}_kv", n_layers, MAX_HEADS, default=heads)
    for layer, (n_heads, n_heads_kv) in enumerate(zip(heads, heads_kv, strict=True)):
        if n_heads_kv and n_heads % n_heads_kv:
            raise metadata.error(f"metadata key '{key}_kv': {n_heads_kv} KV heads for {n_heads} heads in layer {layer}")
    return heads, heads_kv


def _windows_of(
    metadata: Metadata, architecture: str, heads_kv: tuple[int, ...], n_mtp_blocks: int, lengths: tuple[int, int]
) -> Windows | None:
    """None where every layer looks back on everything. `lengths`: of K and V in other layers."""
    pattern = WINDOW_PATTERNS.get(architecture)
    if pattern is None and architecture not in (*WINDOWS_FLAGGED_IN_THE_FILE, *WINDOWS_OF_ALL_ATTENTION):
        return None
    prefix, n_layers, n_main = f"{architecture}.attention", len(heads_kv), len(heads_kv) - n_mtp_blocks
    length = metadata.number(f"{prefix}.sliding_window", MAX_CONTEXT, low=0, default=pattern.length if pattern else 0)
    match architecture:
        case "exaone4" if n_main != EXAONE_LAYERS:
            length = 0
        case "llama4" if length:
            length = LLAMA_LENGTH
        case "smallthinker" if length:
            length = SMALLTHINKER_LENGTH
    key = f"{prefix}.sliding_window_pattern"
    in_layer: tuple[bool, ...] = ()
    if architecture in WINDOWS_OF_ALL_ATTENTION:
        in_layer = tuple(map(bool, heads_kv))
    elif (flags := metadata.flags(key, n_layers)) is not None:
        in_layer = flags
    elif pattern is not None:
        period = metadata.number(key, MAX_CONTEXT, low=0, default=pattern.period)
        without = 0 if pattern.is_first else period - 1
        in_layer = tuple(layer < n_main and (not period or layer % period != without) for layer in range(n_layers))
    if not length or not any(in_layer):
        return None
    k, v = (
        metadata.number(f"{prefix}.{name}_length_swa", MAX_HEADS, default=default)
        for name, default in zip(("key", "value"), lengths, strict=True)
    )
    return Windows(length, in_layer, k, v)


def _check_embedding(metadata: Metadata, tensors: tuple[Tensor, ...], embedding_length: int, vocab_size: int) -> None:
    if not tensors:
        raise metadata.error("it has no tensors: a vocabulary alone cannot be served")
    if vocab_size == 0:
        raise metadata.error("metadata key 'tokenizer.ggml.tokens' has 0 tokens, must have at least 1")
    embedding = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)
    if embedding is None:
        raise metadata.error("tensor 'token_embd.weight' is missing")
    if embedding.dims != (embedding_length, vocab_size):
        raise metadata.error(
            f"tensor 'token_embd.weight' has shape {embedding.dims}; "
            f"embedding length and vocabulary say {(embedding_length, vocab_size)}"
        )


def bytes_by_type(tensors: Iterable[Tensor]) -> list[tuple[str, int]]:
    """Each tensor type and its bytes, the type with most bytes first."""
    totals: Counter[str] = Counter()
    for tensor in tensors:
        totals[tensor.type_name] += tensor.n_bytes
    return totals.most_common()


_NO_WEIGHTS = frozenset(("Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"))
"""Types that ggml has no product for, so that it ends the process on them: those of activations that weights are
multiplied with, and numbers of other kinds."""
_TABLES = re.compile(r"tid2eid|d2t|ordering")
"""Tensors of whole numbers that are looked up."""

_POSITIVE = ("rope.freq_base", "rope.freq_base_swa")


def check_computable(metadata: Metadata, architecture: str, tensors: Iterable[Tensor]) -> None:
    """Raises: BadModelFile: numbers with which llama.cpp would load the model and answer nothing, and types over which
    it dies without a word.
    """
    for key, value in metadata.reals(f"{architecture}."):
        if not math.isfinite(value):
            raise metadata.error(f"metadata key {key!r} is {value}, must be a finite number")
        if key.endswith("epsilon") and value < 0:
            raise metadata.error(f"metadata key {key!r} is {value:g}, must be at least 0")
        if key.endswith(_POSITIVE) and value <= 0:
            raise metadata.error(f"metadata key {key!r} is {value:g}, must be more than 0")
    for tensor in tensors:
        if tensor.type_name in _NO_WEIGHTS and len(tensor.dims) > 1 and not _TABLES.search(tensor.name):
            raise metadata.error(
                f"tensor {tensor.name!r} is {tensor.type_name}; llama.cpp cannot multiply matrices of that type"
            )
