"""A line of a report, and a report."""

from parity.provenance import this_machine
from tools.bench.report import Circumstances, Line, Report, Spread

CIRCUMSTANCES = Circumstances(
    created="2026-01-02T03:04:05Z",
    model="tiny.gguf",
    machine=this_machine(2),
    versions={"llorch-worker": "0.1.0", "llama-server": "b1"},
    commands={"llorch-worker": "llorch-worker --threads 2"},
    n_rounds=3,
    seed=7,
)


def line(**changes: object) -> Line:
    fields: dict[str, object] = {
        "scenario": "1-stream",
        "title": "1 stream, 64 / 96",
        "text": "random words",
        "has_drafts": True,
        "measure": "decode",
        "is_own": True,
        "unit": "tokens/s",
        "peer": "llama-server",
        "is_beside": False,
        "ours": (150.0, 152.0, 151.0),
        "theirs": (150.0, 150.0, 149.0),
        "ratio": Spread(1.0, 1.01, 1.02),
        "bound": "≥ 0.98",
        "verdict": "holds",
        "ours_per_cpu_s": (60.0, 61.0, 62.0),
        "theirs_per_cpu_s": (50.0,),
        **changes,
    }
    return Line(**fields)  # type: ignore[arg-type] # the fields above are a line's


def report() -> Report:
    return Report(circumstances=CIRCUMSTANCES, lines=[line()], failures=[], resident=[])
