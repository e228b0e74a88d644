"""The default model with its first layers only: the same vocabulary, template and sizes; nonsense, soon computed.

For tests of processes and sockets to which it is all the same what the model says: a token takes a third of the time.
"""

from pathlib import Path

from parity.f32_copy import rewrite

N_LAYERS = 2


def write_shallow(source: Path, target: Path) -> None:
    """Write the model of `source`, of llama's architecture, with N_LAYERS layers."""
    rewrite(source, target, metadata={"llama.block_count": N_LAYERS}, keeps=_is_kept)


def _is_kept(name: str) -> bool:
    kind, _, rest = name.partition(".")
    return kind != "blk" or int(rest.partition(".")[0]) < N_LAYERS
