"""The layout of a file's weights in main memory, by the worker's own plan for this machine's build of llama.cpp."""

from pathlib import Path

from parity.setups import cpu
from worker.config.engine import configure
from worker.config.settings import Settings
from worker.llama.repack import may_repack
from worker.models.facts.info import read_info
from worker.models.loading.places import DryRun
from worker.models.plan.memory import plan_of
from worker.models.plan.placement import Group, InMain, spread

PLENTY = 1 << 45


def weights_in_main(path: Path, *, keeps_bits: bool = False) -> InMain:
    """The weights in main memory if no layer is on a GPU."""
    info = read_info(path)
    config = configure(Settings(device="cpu"), path)
    dry_run = DryRun(PLENTY, repacks=may_repack([info], keeps_bits=keeps_bits))
    need = dry_run(config, info, Group((cpu(),), ()), 0, plan_of(config, info, 256))
    return spread(info, need.buffers, ())[0]
