"""Small models with random weights of any architecture that llama.cpp knows; hybrid and recurrent ones above all.

    python -m tools.made_architectures FOLDER qwen3next lfm2 …      tiny ones, a few hundred kilobytes each
    python -m tools.made_architectures FOLDER lfm2-300m             a size that takes time

Owns the keys that each architecture needs, and the weights of recurrent state: it decays slowly, so that what a model
says depends on all tokens before. The names and sizes of the tensors are the library's: it is given a header that has
keys alone and says which tensors it asks for. The layout of the file is made_model.py's.
"""

import argparse
import ctypes
import re
import string
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

N_LAYERS, N_EMBD, N_HEAD, N_FF, WINDOW = 4, 128, 2, 192, 32
N_HEAD_LENGTH = N_EMBD // N_HEAD

FLAGGED = (*architectures.WINDOWS_FLAGGED_IN_THE_FILE, "cohere2moe", "dots3note", "gemma4-assistant")
"""Architectures that ask for a flag for each layer."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Keys = dict[str, Value]
Dims = tuple[int, ...]

_EVERY_SECOND = [0, N_HEAD] * (N_LAYERS // 2)
"""The KV heads of a hybrid whose layers have recurrent state and attention in turn."""
_DELTA_NET: Keys = {
    "full_attention_interval": 2,
    "ssm.inner_size": N_EMBD,
    "ssm.state_size": N_EMBD // 4,
    "ssm.time_step_rank": 4,
}
"""Qwen's layers without attention: the inner size is that of all value heads."""
_LATENT: Keys = {
    "attention.kv_lora_rank": 64,
    "rope.dimension_count": 32,
    "attention.key_length": 64 + 32,
    "attention.value_length": 64,
    "attention.key_length_mla": 32 + 32,
    "attention.value_length_mla": 32,
    "attention.head_count_kv": 1,
}
"""Attention over latent cells (MLA): a cell has the rank of K and V, and the part of K that positions turn."""

_LATENT_BY_TURNS = _LATENT | {
    "attention.head_count_kv": [0, 1] * (N_LAYERS // 2),
    "kda.head_dim": 32,
    "kda.safe_gate": Typed("bool", True),
    "kda.gate_lower_bound": Typed("f32", -5.0),
}
_INDEXER: Keys = {
    "attention.indexer.head_count": 4,
    "attention.indexer.key_length": 64,
    "attention.indexer.top_k": 16,
    "attention.indexer.block_size": 4,
    "attention.indexer.local_blocks": 1,
    "attention.indexer.kpool": 4,
    "attention.indexer.types": [1, 0] * (N_LAYERS // 2),
}
"""Attention to the cells that an index finds."""
_STREAMS: Keys = {
    "hyper_connection.count": 4,
    "hyper_connection.sinkhorn_iterations": 2,
    "hyper_connection.epsilon": Typed("f32", 1e-6),
    "hyper_connection.magnitude": Typed("f32", 2.0),
    "hyper_connection.low_rank": 8,
}
"""Several residual streams."""
_LOW_RANKS: Keys = {f"attention.{name}_lora_rank": 32 for name in ("decay", "iclr", "value_residual_mix", "gate")}

OWN_KEYS: dict[str, Keys] = {
    "apertus": {f"xielu.{name}": Typed("f32", 1.0) for name in ("alpha_n", "alpha_p", "beta", "eps")},
    "arwkv7": _LOW_RANKS | {"token_shift_count": 1},
    "bailingmoe3": _LATENT_BY_TURNS,
    "dbrx": {"attention.clamp_kqv": Typed("f32", 8.0)},
    "deepseek2": _LATENT,
    "deepseek32": _LATENT | _INDEXER,
    "deepseek4": _STREAMS
    | {
        "attention.head_count_kv": 1,
        "attention.key_length": N_HEAD_LENGTH,
        "attention.value_length": N_HEAD_LENGTH,
        "attention.indexer.head_count": 4,
        "attention.indexer.key_length": 64,
        "attention.indexer.top_k": 16,
        "rope.dimension_count": 32,
        "attention.output_group_count": 2,
        "attention.output_lora_rank": 32,
        "attention.compress_ratios": [0, 0, 4, 128],
        "attention.compress_rope_freq_base": Typed("f32", 160_000.0),
        "expert_gating_func": 4,
        "expert_weights_norm": Typed("bool", True),
        "hash_layer_count": 0,
    },
    "dots3note": _LATENT
    | _INDEXER
    | {
        "attention.key_length_swa": 64 + 32,
        "attention.value_length_swa": 64,
        "attention.kv_lora_rank_swa": 64,
        "attention.key_length_mla_swa": 32 + 32,
        "attention.value_length_mla_swa": 32,
        "attention.indexer.types": [0, 1] * (N_LAYERS // 2),
    },
    "glm-dsa": _LATENT | _INDEXER,
    "glm5-next": _LATENT_BY_TURNS
    | _INDEXER
    | _STREAMS
    | {
        "rope.dimension_count": 0,
        "attention.key_length": 64,
        "attention.key_length_mla": 32,
        "attention.indexer.types": [1] * N_LAYERS,
    },
    "granitehybrid": {"attention.head_count_kv": _EVERY_SECOND},
    "graniteswitch": {
        "adapters.count": 2,
        "adapters.lora_rank": 8,
        "adapters.token_ids_activate": [5, 6],
        "adapters.token_ids_substitute": [7, 8],
    },
    "hrm_text": {"block_count": 6, "hrm.layers_per_stack": 1, "hrm.h_cycles": 2, "hrm.l_cycles": 2},
    "hy_v4": _LATENT | _INDEXER | _STREAMS,
    "jamba": {"attention.head_count_kv": _EVERY_SECOND},
    "kimi-k3": _LATENT_BY_TURNS
    | {
        "attn_res.block_size": 12,
        "activation.situ_beta": Typed("f32", 4.0),
        "activation.situ_linear_beta": Typed("f32", 25.0),
    },
    "kimi-linear": _LATENT_BY_TURNS,
    "lfm2": {"attention.head_count_kv": _EVERY_SECOND, "attention.sliding_window": 0},
    "lfm2moe": {"attention.head_count_kv": _EVERY_SECOND, "attention.sliding_window": 0},
    "minimax-m3": _INDEXER | {"attention.indexer.head_count": N_HEAD, "rope.dimension_count": 64},
    "mistral4": _LATENT,
    "nemotron_h": {"attention.head_count_kv": [0, N_HEAD, 0, 0], "feed_forward_length": [0, 0, N_FF, 0]},
    "nemotron_h_moe": {"attention.head_count_kv": [0, N_HEAD, 0, 0], "feed_forward_length": [0, 0, N_FF, 0]},
    "plamo2": {"attention.head_count_kv": _EVERY_SECOND, "ssm.group_count": 0},
    "qwen35": _DELTA_NET,
    "qwen35moe": _DELTA_NET,
    "qwen3next": _DELTA_NET,
    "qwen4exp": _DELTA_NET | _STREAMS | _INDEXER | {"attention.compress_ratios": [4] * N_LAYERS},
    "rwkv6qwen2": {"token_shift_count": 1},
    "rwkv7": _LOW_RANKS,
}
"""The keys in which an architecture differs from those that suit most."""

_EXPERTS: Keys = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_shared_count": 1,
    "expert_feed_forward_length": N_FF,
    "expert_shared_feed_forward_length": N_FF,
    "expert_gating_func": 2,
    "expert_weights_scale": Typed("f32", 1.0),
    "expert_group_scale": Typed("f32", 1.0),
    "experts_per_group": 1,
    "interleave_moe_layer_step": 1,
}

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


def _tiny(architecture: str, *, has_experts: bool = False) -> Kind:
    return Kind(architecture, architecture, has_experts)


RECURRENT = (_tiny("mamba2"),)
HYBRIDS = (
    _tiny("falcon-h1"),
    _tiny("granitehybrid"),
    _tiny("jamba", has_experts=True),
    _tiny("kimi-linear", has_experts=True),
    _tiny("lfm2"),
    _tiny("nemotron_h"),
    _tiny("qwen35"),
    _tiny("qwen35moe", has_experts=True),
    _tiny("qwen3next", has_experts=True),
)
_OTHERS_WITH_EXPERTS = ("bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "lfm2moe", "minimax-01", "nemotron_h_moe")
OTHERS = tuple(
    _tiny(name, has_experts=name in (*_OTHERS_WITH_EXPERTS, "qwen4exp"))
    for name in (*architectures.ATTENTION_FREE, *architectures.HYBRIDS)
    if name not in {kind.name for kind in (*RECURRENT, *HYBRIDS)}
)
"""All other architectures with recurrent state."""


def _with_a_head_of(kind: Kind) -> Kind:
    n_layers = kind.keys["block_count"]
    assert isinstance(n_layers, int)
    own = {**kind.keys, "block_count": n_layers + 1, "nextn_predict_layers": 1}
    return replace(kind, name=f"{kind.name}-mtp", keys=own)


def _with_a_head(architecture: str, *, has_experts: bool = False, keys: Keys | None = None) -> Kind:
    """A tiny model with one layer more, which predicts the token after the next."""
    own = {"block_count": N_LAYERS + 1, "nextn_predict_layers": 1, **(keys or {})}
    return Kind(f"{architecture}-mtp", architecture, has_experts, own)


WITH_A_HEAD = (
    _with_a_head("glm4moe", has_experts=True, keys={"rope.dimension_sections": [0, 0, 0, 0]}),
    _with_a_head("hy_v3", has_experts=True),
    _with_a_head("qwen35"),
    _with_a_head("qwen35moe", has_experts=True),
    _with_a_head("qwen3next", has_experts=True),
)
SIZES = (
    Kind(
        "lfm2-300m",
        "lfm2",
        keys={
            "block_count": 16,
            "context_length": 32_768,
            "embedding_length": 1024,
            "feed_forward_length": 4608,
            "attention.head_count": 16,
            "attention.head_count_kv": [0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0],
            "rope.freq_base": Typed("f32", 1e6),
        },
        n_words=32_768,
        is_tied=True,
    ),
    Kind(
        "qwen35-300m",
        "qwen35",
        keys={
            "block_count": 16,
            "context_length": 32_768,
            "embedding_length": 1024,
            "feed_forward_length": 2816,
            "attention.head_count": 8,
            "attention.head_count_kv": 2,
            "attention.key_length": 256,
            "attention.value_length": 256,
            "full_attention_interval": 4,
            "rope.dimension_count": 64,
            "rope.dimension_sections": [11, 11, 10, 0],
            "rope.freq_base": Typed("f32", 1e7),
            "ssm.group_count": 16,
            "ssm.inner_size": 16 * 128,
            "ssm.state_size": 128,
            "ssm.time_step_rank": 16,
        },
        n_words=32_768,
        is_tied=True,
    ),
)
"""Some 300 million weights in the shapes of LFM2 350M and Qwen3.5 0.8B."""
SIZES_WITH_A_HEAD = tuple(_with_a_head_of(kind) for kind in SIZES if kind.architecture == "qwen35")
"""The same with one layer more."""

KINDS = {kind.name: kind for kind in (*RECURRENT, *HYBRIDS, *OTHERS, *WITH_A_HEAD, *SIZES, *SIZES_WITH_A_HEAD)}


def keys_of(architecture: str, *, has_experts: bool, changes: Mapping[str, Value] | None = None) -> Keys:
    """The keys of an architecture, without a vocabulary. Those that suit most are among them: each takes what it
    knows.
    """
    sizes: Keys = {
        "context_length": 4096,
        "embedding_length": N_EMBD,
        "block_count": N_LAYERS,
        "leading_dense_block_count": 1,
        "feed_forward_length": N_FF,
        "logit_scale": Typed("f32", 1.0),
        "full_attention_interval": 2,
        "attention.head_count": N_HEAD,
        "attention.head_count_kv": N_HEAD,
        "attention.layer_norm_epsilon": Typed("f32", 1e-5),
        "attention.layer_norm_rms_epsilon": Typed("f32", 1e-5),
        "attention.sliding_window": WINDOW,
        "attention.max_alibi_bias": Typed("f32", 8.0),
        "rope.dimension_sections": [8, 8, 8, 8],
        "embedding_length_per_layer_input": N_EMBD // 2,
        "attention.key_length_swa": N_HEAD_LENGTH,
        "attention.value_length_swa": N_HEAD_LENGTH,
        "attention.shared_kv_layers": 0,
        "attention.q_lora_rank": 64,
        "attention.kv_lora_rank": 64,
        "rope.freq_base_swa": Typed("f32", 10_000.0),
        "residual_scale": Typed("f32", 1.0),
        "swiglu_clamp_exp": Typed("f32", 7.0),
        "use_parallel_residual": Typed("bool", False),
        **_state_keys(architecture),
        **(_EXPERTS if has_experts else {}),
        **({"attention.sliding_window_pattern": [1, 0] * (N_LAYERS // 2)} if architecture in FLAGGED else {}),
        **OWN_KEYS.get(architecture, {}),
        **(changes or {}),
    }
    return {
        "general.architecture": architecture,
        "general.name": "Random weights",
        **{key if key.startswith("xielu.") else f"{architecture}.{key}": value for key, value in sizes.items()},
    }


def _state_keys(architecture: str) -> Keys:
    """The keys of a recurrent state; none of an architecture that has none."""
    if architecture not in (*architectures.ATTENTION_FREE, *architectures.HYBRIDS):
        return {}
    if "rwkv" in architecture:
        return {"wkv.head_size": N_HEAD_LENGTH, "time_mix_extra_dim": 64, "time_decay_extra_dim": 64}
    if architecture.startswith("lfm2"):
        return {"shortconv.l_cache": 3}
    return {
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 2 * N_EMBD,
        "ssm.state_size": 16,
        "ssm.time_step_rank": 4,
        "ssm.group_count": 2,
    }


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
