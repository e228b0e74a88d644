"""Which layers of a model have attention, by a GGUF's metadata, and what the others keep of each job instead.

Owns the meaning of those keys; info.py has the rest. Pure.
"""

from worker.model.metadata import Metadata

MAX_HEADS = 1 << 16
MAX_STATE = 1 << 20

ATTENTION_FREE = ("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7")
"""Architectures without attention heads: llm_arch_is_recurrent in llama.cpp."""

HYBRIDS_BY_INTERVAL = ("qwen3next", "qwen35", "qwen35moe")
"""Architectures whose head counts do not tell which layers have attention."""


def head_counts(metadata: Metadata, architecture: str, n_layers: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Query heads and KV heads per layer; layers without attention have 0 (hybrid models)."""
    key = f"{architecture}.attention.head_count"
    is_attention_free = architecture in ATTENTION_FREE
    heads = metadata.per_layer(key, n_layers, MAX_HEADS, default=(0,) * n_layers if is_attention_free else None)
    if is_attention_free:
        return heads, (0,) * n_layers
    if not any(heads):
        raise metadata.error(f"metadata key {key!r} is 0, must be in 1..{MAX_HEADS}")
    heads_kv = metadata.per_layer(f"{key}_kv", n_layers, MAX_HEADS, default=heads)
    if interval := _attention_interval(metadata, architecture, n_layers):
        heads_kv = tuple(0 if (layer + 1) % interval else n_kv for layer, n_kv in enumerate(heads_kv))
    for layer, (n_heads, n_heads_kv) in enumerate(zip(heads, heads_kv, strict=True)):
        if n_heads_kv and n_heads % n_heads_kv:
            raise metadata.error(f"metadata key '{key}_kv': {n_heads_kv} KV heads for {n_heads} heads in layer {layer}")
    return heads, heads_kv


def _attention_interval(metadata: Metadata, architecture: str, n_layers: int) -> int:
    """Every how many layers one has attention; 0 where the head counts tell."""
    if architecture not in HYBRIDS_BY_INTERVAL:
        return 0
    return metadata.number(f"{architecture}.full_attention_interval", n_layers, default=4)


def state_length(metadata: Metadata, architecture: str, embedding_length: int) -> int:
    """Float32 numbers that a layer without attention keeps of each job. Source: llama_hparams::n_embd_r, n_embd_s."""

    def size(name: str, default: int = 0) -> int:
        return metadata.number(f"{architecture}.{name}", MAX_STATE, low=0, default=default)

    if wkv_head := size("wkv.head_size"):
        return embedding_length * (size("token_shift_count", default=2) + wkv_head)
    if n_short := size("shortconv.l_cache"):
        return embedding_length * (n_short - 1)
    n_inner, n_state = size("ssm.inner_size"), size("ssm.state_size")
    n_convolved = n_inner + 2 * size("ssm.group_count") * n_state
    return max(0, size("ssm.conv_kernel") - 1) * n_convolved + n_state * n_inner
