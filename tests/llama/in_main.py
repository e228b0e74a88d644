"""The layout of a file's weights in main memory, by the worker's own plan for this machine's build of llama.cpp."""

from pathlib import Path

from worker.llama.repack import repacking_of
from worker.model.info import read_info
from worker.plan.spread import InMain, layers_of


def weights_in_main(path: Path, *, keeps_bits: bool = False) -> InMain:
    """The weights in main memory if no layer is on a GPU."""
    info = read_info(path)
    return layers_of(info, repacking_of([info], keeps_bits=keeps_bits)).weights_in_main(0)
