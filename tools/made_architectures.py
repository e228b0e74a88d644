"""Small models with random weights of any architecture that llama.cpp knows; hybrid and recurrent ones above all.

    python -m tools.made_architectures FOLDER qwen3next lfm2 …      tiny ones, a few hundred kilobytes each
    python -m tools.made_architectures FOLDER lfm2-300m             a size that takes time

Owns the keys that each architecture needs (made_architectures.toml), and the weights of recurrent state: it decays
slowly, so that what a model says depends on all tokens before. The names and sizes of the tensors are the library's: it
is given a header that has keys alone and says which tensors it asks for. The layout of the file is made_model.py's.
"""

import argparse
import ctypes
import re
import string
import tomllib
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as capi
from numpy.typing import NDArray

from tests.gguf_files import F32, GgufFile, TensorRow, Typed, Value
from tools.made_model import BLOCKS, NAMES, Q4_0, Q4_1, row_of, vocabulary, write_model
from worker.llama.library import call_ggml, library_function, open_library
from worker.llama.repack import TensorHead
from worker.models.upstream import architectures

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""The keys, by what has them."""
N_LAYERS: int = TABLE["common"]["block_count"]
WINDOW: int = TABLE["common"]["attention.sliding_window"]
N_WORDS = 32_768
"""The vocabulary of a model of SIZES."""

FLAGGED = (*architectures.WINDOWS_FLAGGED_IN_THE_FILE, "cohere2moe", "dots3note", "gemma4-assistant")
"""Architectures that ask for a flag for each layer."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Keys = dict[str, Value]
Dims = tuple[int, ...]

_LEFT_OUT = re.compile(r"dense_2|cls|(?<!gate_inp)\.(input_)?scale$")
"""Tensors that a model may have and that would change what it is: heads that embed, and scales of number formats that
are not written here."""
_OTHER_FORM = {"qwen3next": re.compile(r"ssm_in\.weight"), "rwkv6qwen2": re.compile(r"time_mix_first")}
"""The same of one architecture: tensors of another form of its files, which have others in their place."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A model that can be made."""

    name: str
    architecture: str
    has_experts: bool = False
    keys: Keys = field(default_factory=dict)
    """The keys in which it differs from its architecture's."""
    n_words: int | None = None
    """The number of tokens of a vocabulary of words; None for a small one of bytes and letters."""
    is_tied: bool = False
    """True if the matrix of the token embeddings is also the output's."""

    def __str__(self) -> str:
        return self.name


_WITH_EXPERTS = (
    *("jamba", "kimi-linear", "qwen35moe", "qwen3next", "bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "lfm2moe"),
    *("minimax-01", "nemotron_h_moe", "qwen4exp", "glm4moe", "hy_v3"),
)


def _tiny(name: str) -> Kind:
    return Kind(name, name, name in _WITH_EXPERTS)


RECURRENT = (_tiny("mamba2"),)
HYBRIDS = tuple(
    _tiny(name)
    for name in (
        *("falcon-h1", "granitehybrid", "jamba", "kimi-linear", "lfm2", "nemotron_h", "qwen35", "qwen35moe"),
        "qwen3next",
    )
)
OTHERS = tuple(
    kind
    for kind in map(_tiny, (*architectures.ATTENTION_FREE, *architectures.HYBRIDS))
    if kind not in (*RECURRENT, *HYBRIDS)
)
"""All other architectures with recurrent state."""


def _with_a_head(kind: Kind, keys: Keys | None = None) -> Kind:
    """The model with one layer more, which predicts the token after the next."""
    n_layers = kind.keys.get("block_count", N_LAYERS)
    assert isinstance(n_layers, int)
    own = {**kind.keys, "block_count": n_layers + 1, "nextn_predict_layers": 1, **(keys or {})}
    return replace(kind, name=f"{kind.name}-mtp", keys=own)


WITH_A_HEAD = (
    _with_a_head(_tiny("glm4moe"), {"rope.dimension_sections": [0, 0, 0, 0]}),
    *(_with_a_head(_tiny(name)) for name in ("hy_v3", "qwen35", "qwen35moe", "qwen3next")),
)
SIZES = tuple(Kind(name, **of, n_words=N_WORDS, is_tied=True) for name, of in TABLE["sizes"].items())
SIZES_WITH_A_HEAD = tuple(_with_a_head(kind) for kind in SIZES if kind.architecture == "qwen35")

KINDS = {kind.name: kind for kind in (*RECURRENT, *HYBRIDS, *OTHERS, *WITH_A_HEAD, *SIZES, *SIZES_WITH_A_HEAD)}


def keys_of(architecture: str, *, has_experts: bool, changes: Mapping[str, Value] | None = None) -> Keys:
    """The keys of an architecture, without a vocabulary. Those that suit most are among them: each takes what it
    knows.
    """
    own = dict(TABLE["own"].get(architecture, {}))
    parts = [TABLE["parts"][name] for name in own.pop("like", [])]
    flags: Keys = {"attention.sliding_window_pattern": [1, 0] * (N_LAYERS // 2)} if architecture in FLAGGED else {}
    experts = TABLE["experts"] if has_experts else {}
    found = ChainMap(dict(changes or {}), own, *reversed(parts), flags, experts, _state_keys(architecture))
    sizes = {**TABLE["common"], **found}
    return {
        "general.architecture": architecture,
        "general.name": "Random weights",
        **{key if key.startswith("xielu.") else f"{architecture}.{key}": value for key, value in sizes.items()},
    }


def _state_keys(architecture: str) -> Keys:
    """The keys of a recurrent state; none of an architecture that has none."""
    if architecture not in (*architectures.ATTENTION_FREE, *architectures.HYBRIDS):
        return {}
    name = "rwkv" if "rwkv" in architecture else "convolution" if architecture.startswith("lfm2") else "ssm"
    return dict(TABLE["states"][name])


def small_vocabulary() -> Keys:
    """SentencePiece's kind: bytes, letters and signs, and the marks of a conversation."""
    letters = ["▁", *string.digits, *string.ascii_letters, *string.punctuation]
    tokens = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [_UNKNOWN, *[_CONTROL] * 4, *[_BYTE] * 256, *[_NORMAL] * len(letters)]
    tokens += letters
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": Typed("f32", [0.0] * len(tokens)),
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


_UNKNOWN, _NORMAL, _CONTROL, _BYTE = 2, 1, 3, 6
"""llama_token_type in llama.h."""


def write_kind(path: Path, kind: Kind, *, type_id: int = Q4_1, seed: int = 1) -> Path:
    """A file of the kind, written unless it is there whole. `type_id`: of the matrices; all else is F32.

    Raises: OSError.
    """
    words = small_vocabulary() if kind.n_words is None else vocabulary(kind.n_words)
    metadata = {
        **keys_of(kind.architecture, has_experts=kind.has_experts, changes=kind.keys),
        **words,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    left_out = (_LEFT_OUT, *filter(None, (_OTHER_FORM.get(kind.architecture),)))
    asked = {
        name: dims for name, dims in tensors_of(metadata).items() if not any(each.search(name) for each in left_out)
    }
    if kind.is_tied:
        asked.pop("output.weight")
    rows = [row_of(name, dims, type_of(name, dims, type_id)) for name, dims in asked.items()]
    return write_model(path, metadata, rows, seed=seed, floats=floats)


class _InitParams(ctypes.Structure):
    """gguf_init_params (gguf.h)."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def tensors_of(metadata: Mapping[str, Value]) -> dict[str, Dims]:
    """Names and sizes of the tensors that the library asks for. Some architectures end the process for want of a key.

    Raises: ValueError with the library's reason.
    """
    name_of = library_function("ggml_get_name", ctypes.c_char_p, ctypes.c_void_p)
    found: dict[str, Dims] = {}

    def note(tensor: int, _: Any) -> None:
        dims = list(TensorHead.from_address(tensor).ne)
        while len(dims) > 1 and dims[-1] == 1:
            dims.pop()
        found[name_of(tensor).decode()] = tuple(dims)

    with open_library().watch() as watch, model_of_keys(metadata, note) as model:
        if not model:
            raise ValueError(f"{metadata['general.architecture']}: {watch.last_error or 'the library gave no reason'}")
    return found


@contextmanager
def model_of_keys(metadata: Mapping[str, Value], on_tensor: Callable[[int, Any], None]) -> Iterator[Any]:
    """A model that is made from keys alone, or None. `on_tensor` gets each tensor, whose data is left as it comes."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "keys.gguf"
        path.write_bytes(GgufFile(metadata).header())
        keys = call_ggml(
            "gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p(str(path).encode()), _InitParams(True, None)
        )
    callback = capi.llama_model_set_tensor_data_t(on_tensor)
    params = capi.llama_model_default_params()
    params.load_mtp = True
    model = capi.llama_model_init_from_user(keys, callback, None, params)
    call_ggml("gguf_free", None, ctypes.c_void_p(keys))
    try:
        yield model
    finally:
        if model:
            capi.llama_model_free(model)


def type_of(name: str, dims: Dims, type_id: int) -> int:
    """The type of matrices; F32 for what llama.cpp's own quantiser leaves alone."""
    is_matrix = len(dims) > 1 and name.endswith("weight") and not _NEVER_QUANTISED.search(name)
    return type_id if is_matrix and dims[0] % BLOCKS[type_id][0] == 0 else F32


_NEVER_QUANTISED = re.compile(
    r"_norm|ffn_gate_inp|altup|laurel|per_layer_model_proj|position_embd|token_types|ssm_conv1d|shortconv\.conv"
    r"|time_mix_|channel_mix_lerp|attn_rel_b|indexer|hc_"
)
"""Names of matrices that tensor_allows_quantization leaves as they are (llama-quant.cpp), or that ggml takes as F32."""


def floats(tensor: TensorRow, chance: np.random.Generator) -> NDArray[np.floating]:
    """Numbers with which sizes stay as they are from layer to layer, and a state is kept for tens to thousands of
    tokens.
    """
    shape = tensor.dims[::-1]
    for pattern, low, high in _RANGES:
        if re.search(pattern, tensor.name):
            drawn = chance.uniform(low, high, shape)
            return -(10**drawn) if pattern == _DECAY else drawn
    values = chance.standard_normal(shape)
    if "norm" in tensor.name and "bias" not in tensor.name:
        return 1 + values * 0.1
    if tensor.name.endswith("bias"):
        return values * 0.1
    return values / sqrt(tensor.dims[0])


_DECAY = r"ssm_a$"
_RANGES = (
    (r"^rope_f", 1.0, 1.0),
    (_DECAY, -2.0, 0.0),
    (r"ssm_dt\.bias$", -4.0, -2.0),
    (r"ssm_d$", 0.9, 1.1),
    (r"time_mix_(decay|w0)\.weight$", -6.0, -3.0),
    (r"(time|channel)_mix_lerp", 0.0, 1.0),
)
"""Tensors of a state, and between which numbers theirs lie. A state loses the share exp(A softplus(x + bias)) with each
token, where A is negative and lies between powers of ten: some heads forget slowly, some soon. RWKV's decay is
exp(-exp(x))."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", choices=KINDS, metavar="NAME", help=", ".join(KINDS))
    parser.add_argument("--type", choices=NAMES.values(), help="of the matrices; Q4_1 for a tiny model, else Q4_0")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    for name in asked.names:
        kind = KINDS[name]
        type_name = asked.type or NAMES[Q4_1 if kind.n_words is None else Q4_0]
        type_id = next(number for number, known in NAMES.items() if known == type_name)
        print(write_kind(asked.folder / f"random-{name}.{type_name}.gguf", kind, type_id=type_id, seed=asked.seed))


if __name__ == "__main__":
    main()
