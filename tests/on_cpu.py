"""A model's file, loaded on the CPU without a word of progress."""

from pathlib import Path

from worker.llama.devices import devices
from worker.llama.model import Model
from worker.models.plan.devices import choose_device


def loaded_on_cpu(path: Path, *, may_repack: bool = True, loads_heads: bool = False) -> Model:
    return Model.load(
        path,
        device=choose_device("cpu", devices()),
        n_gpu_layers=0,
        on_progress=lambda _: None,
        may_repack=may_repack,
        loads_heads=loads_heads,
    )
