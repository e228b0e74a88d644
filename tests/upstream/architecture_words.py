"""A program: what the library says of a tiny model of each architecture that is named, a line of JSON for each.

    python -m tests.upstream.architecture_words memory|dense|experts llama mamba …

A model is made from keys alone: the library asks for whatever tensors the architecture has, and their data is left as
it comes. Some architectures end the process for want of a key; the caller begins again with the next one.
"""

import ctypes
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from llama_cpp import llama_cpp as capi

from tests.gguf_files import GgufFile, Typed, Value
from tests.llama.tiny import vocabulary
from worker.llama.library import call_ggml, open_library
from worker.upstream.architectures import WINDOWS_FLAGGED_IN_THE_FILE

N_LAYERS, N_EMBD, N_HEAD, N_FF, WINDOW = 4, 128, 2, 192, 32


FLAGGED = (*WINDOWS_FLAGGED_IN_THE_FILE, "cohere2moe", "dots3note", "gemma4-assistant")
"""Architectures that ask for a flag for each layer."""

_EXPERTS: dict[str, Value] = {
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


class _InitParams(ctypes.Structure):
    """gguf_init_params (gguf.h)."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def keys_of(architecture: str, *, has_experts: bool) -> dict[str, Value]:
    """Keys that suit most architectures; each takes those that it knows."""
    sizes: dict[str, Value] = {
        "vocab_size": len(vocabulary()["tokenizer.ggml.tokens"]),  # type: ignore[arg-type]  # a list of texts
        "context_length": 256,
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
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 2 * N_EMBD,
        "ssm.state_size": 16,
        "ssm.time_step_rank": N_HEAD,
        "ssm.group_count": 2,
        "wkv.head_size": N_EMBD // N_HEAD,
        "time_mix_extra_dim": 64,
        "time_decay_extra_dim": 64,
        "shortconv.l_cache": 3,
        "embedding_length_per_layer_input": N_EMBD // 2,
        "attention.key_length_swa": N_EMBD // N_HEAD,
        "attention.value_length_swa": N_EMBD // N_HEAD,
        "attention.shared_kv_layers": 0,
        "attention.q_lora_rank": 64,
        "attention.kv_lora_rank": 64,
        "rope.freq_base_swa": Typed("f32", 10_000.0),
        "residual_scale": Typed("f32", 1.0),
        "swiglu_clamp_exp": Typed("f32", 7.0),
        "use_parallel_residual": Typed("bool", False),
        **(_EXPERTS if has_experts else {}),
        **({"attention.sliding_window_pattern": [1, 0] * (N_LAYERS // 2)} if architecture in FLAGGED else {}),
    }
    return {
        "general.architecture": architecture,
        "general.name": "Tiny",
        **{f"{architecture}.{key}": value for key, value in sizes.items()},
        **vocabulary(),
    }


def main() -> None:
    asked, *names = sys.argv[1:]
    library = open_library()
    with TemporaryDirectory() as folder:
        for name in names:
            path = Path(folder) / "made.gguf"
            path.write_bytes(GgufFile(keys_of(name, has_experts=asked == "experts")).header())
            with library.watch() as watch:
                reported = memory_of(path) if asked == "memory" else window_of(path)
            sys.stdout.write(json.dumps({"name": name, "reported": reported, "error": watch.last_error}) + "\n")
            sys.stdout.flush()


def memory_of(path: Path) -> list[bool] | None:
    """Return whether the library calls the architecture recurrent, and hybrid; None if it does not know it."""
    params = capi.llama_model_default_params()
    params.vocab_only = True
    model = capi.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        return None
    found = [bool(capi.llama_model_is_recurrent(model)), bool(capi.llama_model_is_hybrid(model))]
    capi.llama_model_free(model)
    return found


def window_of(path: Path) -> int | None:
    """Return how far layers with a sliding window look back, 0 if there are none; None if no model can be made."""
    metadata = call_ggml(
        "gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p(str(path).encode()), _InitParams(True, None)
    )
    params = capi.llama_model_default_params()
    leave = capi.llama_model_set_tensor_data_t(lambda _tensor, _: None)
    model = capi.llama_model_init_from_user(metadata, leave, None, params)
    call_ggml("gguf_free", None, ctypes.c_void_p(metadata))
    if not model:
        return None
    window = int(capi.llama_model_n_swa(model))
    capi.llama_model_free(model)
    return window


if __name__ == "__main__":
    main()
