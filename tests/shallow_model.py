"""The default model with its first layers only: the same vocabulary, template and sizes; nonsense, soon computed.

For tests of processes and sockets to which it is all the same what the model says: a token takes a third of the time.
"""

from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter

N_LAYERS = 2
_LAYERS_KEY = "llama.block_count"


def write_shallow(source: Path, target: Path) -> None:
    """Write the model of `source`, of llama's architecture, with N_LAYERS layers."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, arch="")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            kind, *item_kinds = field.types
            writer.add_key_value(key, N_LAYERS if key == _LAYERS_KEY else field.contents(), kind, *item_kinds)
    tensors = [tensor for tensor in reader.tensors if not _is_left_out(tensor.name)]
    for tensor in tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        writer.add_tensor_info(
            tensor.name, shape, np.dtype(np.float32), int(tensor.n_bytes), raw_dtype=tensor.tensor_type
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(tensor.data)
    writer.close()


def _is_left_out(name: str) -> bool:
    kind, _, rest = name.partition(".")
    return kind == "blk" and int(rest.partition(".")[0]) >= N_LAYERS
