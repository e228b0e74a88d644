"""A program: what the worker's own code makes of a tiny model of each named architecture, a line of JSON for each.

python -m tests.models.loading.ability_words dense|experts llama mamba …
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from tests.models.loading.test_load import configuration
from tools.made_architectures import WINDOW, Kind, write_kind
from worker.config.engine_settings import Configure
from worker.errors import WorkerError
from worker.llama.invariance import PRODUCT_TYPES, rule_of
from worker.llama.library import open_library
from worker.models.loading.load import LoadedRunner, load_runner
from worker.models.loading.places import Places
from worker.models.plan.abilities import obstacle
from worker.models.plan.memory import has_state
from worker.models.upstream.architectures import HYBRIDS_OF_SEVERAL_PARTS, OF_SEVERAL_PARTS

VARIANTS = {
    "chameleon": Kind("chameleon", "chameleon", n_words=10_240),
    "lfm2 with windows": Kind("lfm2 with windows", "lfm2", keys={"attention.sliding_window": WINDOW}),
}
"""A model that needs a larger vocabulary, as some of its tokens are for pictures; one with another memory than most of
its architecture."""


def main() -> None:
    asked, *names = sys.argv[1:]
    open_library()
    for name in names:
        with TemporaryDirectory() as folder:
            kind = VARIANTS.get(name, Kind(name, name, has_experts=asked == "experts"))
            report = reported(Path(folder) / "made.gguf", kind)
        sys.stdout.write(json.dumps({"name": name, "reported": report}) + "\n")
        sys.stdout.flush()


def reported(path: Path, kind: Kind) -> dict[str, Any] | None:
    """None where no such model can be made."""
    try:
        write_kind(path, kind)
    except ValueError:
        return None
    config = configuration(path, ctx_size=512, parallel=2)
    try:
        loaded = load_runner(config, lambda _: None)
    except WorkerError as error:
        return {"error": str(error).removeprefix(f"{path}: ")}
    try:
        return abilities_of(config, loaded)
    finally:
        loaded.runner.close()


def abilities_of(config: Configure, loaded: LoadedRunner) -> dict[str, Any]:
    facts, runner, info = loaded.facts, loaded.runner, loaded.info
    invariance = rule_of(
        config,
        info,
        is_on_gpu=False,
        is_without_flash=runner.context.is_without_flash,
        is_in_order=runner.kv.seq_ids.forgotten_seq_id is not None,
        own_types=PRODUCT_TYPES,
        layout=lambda _: None,
    ).invariance(config)
    return {
        "has_cells": any(info.head_counts_kv),
        "has_state": has_state(info),
        "has_windows": info.windows is not None,
        "has_index": info.architecture in (*OF_SEVERAL_PARTS, *HYBRIDS_OF_SEVERAL_PARTS),
        "shares": runner.kv.can_share,
        "cache_off": facts.prefix_cache_off,
        "obstacle": obstacle(info, swa_full=True, parallel=facts.parallel),
        "drafts_off": facts.drafts.off_because,
        "has_row_costs": bool(facts.row_costs),
        "stops": runner.can_abort,
        "invariant": invariance.kept,
        "why": invariance.why,
        "planned_bytes": msgspec.json.decode(facts.places, type=Places).served.need.kv_bytes,
        "taken_bytes": sum(
            each.size_bytes for each in runner.sizes.buffers if each.kind.endswith(("KV", "RS", "state"))
        ),
    }


if __name__ == "__main__":
    main()
