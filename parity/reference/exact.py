"""The llama family in float64 throughout; and one layer of it in memory at a time, for large checkpoints.

transformers computes RMSNorm, the rotary tables and softmax in float32 whatever the model's dtype; the functions here
stand in for these. The attention function also is where a Recorder sees what no module's output shows.
"""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from parity.reference.hooks import Recorder
from parity.reference.libraries import torch, transformers
from parity.reference.tensors import CheckpointTensors
from worker.errors import UsageError

_ATTENTION = "llorch_plain"
_STATIC_SCALING = ("linear", "llama3", "yarn")
"""Values of `rope_type` whose frequencies do not depend on the length of the text."""


def attention_name() -> str:
    """The name under which transformers finds `_attention`, made known to it."""
    transformers.AttentionInterface.register(_ATTENTION, _attention)
    transformers.AttentionMaskInterface.register(_ATTENTION, transformers.masking_utils.eager_mask)
    return _ATTENTION


def made_exact(model: Any) -> Any:
    """`model`, a float64 one of the llama family, with norms and rotary tables in float64 too.

    Frequencies are exact where `rope_type` is `default`; scaled ones are transformers' own, computed in float32. Where
    they change with the length of the text (`dynamic`, `longrope`), the tables stay transformers'.
    """
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(_rms_norm, module)
    rope_type = model.config.rope_parameters["rope_type"]
    if rope_type == "default":
        model.model.rotary_emb.forward = partial(_rotary_tables, _frequencies(model.config), 1.0)
    elif rope_type in _STATIC_SCALING:
        frequencies, attention_factor = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[rope_type](model.config)
        model.model.rotary_emb.forward = partial(_rotary_tables, frequencies.double(), attention_factor)
    return model


def _rms_norm(module: Any, hidden: Any) -> Any:
    mean_square = hidden.pow(2).mean(-1, keepdim=True)
    return module.weight * (hidden * torch.rsqrt(mean_square + module.variance_epsilon))


def _frequencies(config: Any) -> Any:
    """float64[head_dim / 2], radians per position."""
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return config.rope_parameters["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)


def _rotary_tables(frequencies: Any, attention_factor: float, hidden: Any, position_ids: Any) -> tuple[Any, Any]:
    """cos and sin, [n_texts, n_tokens, head_dim]: pairs are i and i + head_dim / 2."""
    angles = (position_ids[..., None].double() * frequencies).repeat(1, 1, 2)
    return (angles.cos() * attention_factor).to(hidden.dtype), (angles.sin() * attention_factor).to(hidden.dtype)


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    *,
    scaling: float,
    recorder: Recorder | None = None,
    **_: Any,
) -> tuple[Any, Any]:
    """transformers' attention interface: [n_texts, n_heads, n_tokens, head_dim] to [n_texts, n_tokens, n_heads, …]."""
    n_queries_per_key = module.num_key_value_groups
    scores = query @ key.repeat_interleave(n_queries_per_key, dim=1).transpose(2, 3) * scaling
    probs = torch.softmax(scores + mask, dim=-1)
    if recorder is not None:
        recorder.attention(module.layer_idx, query, key, scores.where(mask == 0, 0.0), probs)
    return (probs @ value.repeat_interleave(n_queries_per_key, dim=1)).transpose(1, 2), probs


# ── one layer at a time ──────────────────────────────────────────────────────────────────────────


def layerwise(config: Any, folder: Path, dtype: Any, attention: str) -> Any:
    """The model of `config`, llama family, over the checkpoint in `folder`.

    Raises: UsageError where the checkpoint lacks a tensor.
    """
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    model.requires_grad_(False)
    # Its tables are made from the config, so they are in no checkpoint.
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    tensors, room = CheckpointTensors.open(folder), _Room(dtype)
    layers = [f"model.layers.{number}" for number in range(config.num_hidden_layers)]
    for name in ("model.embed_tokens", *layers, "model.norm", "lm_head"):
        _read_when_needed(name, model.get_submodule(name), tensors, room)
    return model


class _Room:
    """Memory for the weights of one module, the same for all.

    Allocated once: what is freed after each layer would be cut up by the small arrays that outlive the layer, and then
    be too small for the next one's weights.
    """

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._tensors: dict[tuple[tuple[int, ...], int], Any] = {}

    def for_weights_of(self, module: Any) -> dict[str, Any]:
        """A tensor for each parameter, by its name in the module; what is in it is whatever was last."""
        n_alike: Counter[tuple[int, ...]] = Counter()
        found = {}
        for name, parameter in module.named_parameters():
            shape = tuple(parameter.shape)
            key = (shape, n_alike[shape])
            n_alike[shape] += 1
            if key not in self._tensors:
                self._tensors[key] = torch.empty(shape, dtype=self._dtype)
            found[name] = self._tensors[key]
        return found


def _read_when_needed(prefix: str, module: Any, tensors: CheckpointTensors, room: _Room) -> None:
    weights = room.for_weights_of(module)
    for name in weights:
        if not tensors.has(f"{prefix}.{name}"):
            raise UsageError(f"the checkpoint lacks {prefix}.{name}: is it whole?")

    def read(_: Any, __: Any) -> None:
        for name, weight in weights.items():
            tensors.read_into(f"{prefix}.{name}", weight.numpy())

    module.load_state_dict(weights, assign=True)
    module.register_forward_pre_hook(read)
