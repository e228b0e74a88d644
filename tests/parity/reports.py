"""Small reports for tests, every level in them; nothing was measured."""

from collections.abc import Sequence
from dataclasses import replace

from parity.provenance import Machine
from parity.report import (
    LEVELS,
    BoundsUsed,
    Check,
    Level,
    ModelFile,
    ReferenceUsed,
    Report,
    Table,
    judged,
    not_run,
    report_of,
)
from tests.wire.test_numerics import ON_A_CPU
from worker.wire.load import Numerics

SHA256 = "0123456789abcdef" * 4
ANYTHING = "a|b `c` <b>*d*</b> [e](f) \\ g\nh\r\x1b[31m $i$ _j_ # k\u202e\ud800 日本 "
"""A text with the worst that a token's piece can have."""

HOLDS = Check("blk.0 attn_norm, relative error", 3.2e-6, "at most", 1e-4, "float32 against float64", "position 5")
BROKEN = Check("blk.3 k_rope, relative error", 0.25, "at most", 1e-4, "float32 against float64", "position 7")
NOT_A_NUMBER = Check("logits, largest error", float("nan"), "at most", 1e-4, "measured")


def level(name: str, *checks: Check) -> Level:
    table = Table("Worst texts", ("text", ">ids"), ((ANYTHING, "12"), ("", "0")), note="worst first")
    found = judged(name, "everything agrees", checks or (HOLDS,), tables=[table])
    return replace(found, seconds=1.25, budget_seconds=60.0)


def levels(**changed: Level) -> list[Level]:
    """All of them pass but serving, which did not run; `changed` by name."""
    made = {name: level(name) for name in LEVELS} | {"serving": not_run("serving", "no worker was asked for")}
    return list((made | changed).values())


def report(
    found: Sequence[Level] | None = None,
    *,
    sha256: str = SHA256,
    file: str = "tiny.gguf",
    numerics: Numerics | None = ON_A_CPU,
) -> Report:
    return report_of(
        run_id="20260102-030405-0123abcd",
        created="2026-01-02T03:04:05Z",
        model=ModelFile(file, sha256, 98_000_000, "Q4_1", "llama"),
        reference=ReferenceUsed("checkpoint", "tiny-checkpoint", "f" * 64),
        bounds=BoundsUsed("built in", "e" * 64),
        parameters={"tokens": "4096", "levels": "all"},
        versions={"worker": "0.1.0", "torch": "not installed"},
        machine=Machine("A CPU", 8, 2, 2, "Linux x86_64"),
        levels=levels() if found is None else found,
        numerics=numerics,
    )


FAILED = level("checkpoints", HOLDS, BROKEN)
"""One check of two is broken."""
