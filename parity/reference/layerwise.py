"""A llama model with one layer's weights in memory at a time: they are read whenever the layer computes.

It is for checkpoints that are large for the machine's memory. Each run reads the checkpoint once more.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from parity.reference.libraries import torch, transformers
from parity.reference.tensors import CheckpointTensors
from worker.errors import UsageError


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
