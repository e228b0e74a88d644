"""`bench sizes`: which files are measured, the tables over them, and a whole run beside stand-ins."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tools.bench.made_report import line, report
from tools import CHECKOUT
from tools.bench.__main__ import run
from tools.bench.processes import Memory
from tools.bench.report import MB, Line, Resident, Spread
from tools.bench.sizes import Size, tables
from tools.made_model import SHAPES
from worker.model.info import read_info

pytestmark = pytest.mark.usefixtures("no_models")

ALONE = Size(
    name="small",
    file_bytes=100 * MB,
    allocated_bytes=150 * MB,
    report=replace(report(), lines=[], resident=[], failures=[]),
)


def measured(lines: Sequence[Line], resident: Sequence[Resident] = ()) -> Size:
    return replace(ALONE, report=replace(ALONE.report, lines=lines, resident=resident))


# ── tables ───────────────────────────────────────────────────────────────────────────────────────


def test_a_row_has_our_number_and_each_peer_s_with_the_ratio_s_spread() -> None:
    beside = line(ours=(10.0, 12.0, 11.0), theirs=(10.0, 10.0, 10.0), ratio=Spread(1.0, 1.1, 1.2))
    bench = replace(beside, peer="llama-bench", theirs=(8.0,), ratio=Spread(1.25, 1.375, 1.5))
    other = replace(beside, is_own=False, measure="first token", ours=(7.0,))
    (_, [cells]), *_ = tables([measured([other, beside, bench])])
    assert cells == (
        *("small", "11.0 tokens/s"),
        *("10.0 tokens/s", "1.100 (1.000 to 1.200)"),
        *("8.0 tokens/s", "1.375 (1.250 to 1.500)"),
        *("302.0 tokens/s", "0.04"),
    )


def test_without_peers_our_numbers_stand_alone() -> None:
    (_, [cells]), (_, [missing]), *_, (_, [memory]), _ = tables([measured([line(peer=None, theirs=(), ratio=None)])])
    assert cells == ("small", "151.0 tokens/s", *[""] * 4, "302.0 tokens/s", "0.50")
    assert missing == ("small", "-", *[""] * 6)
    assert memory == ("small", "100 MB", "150 MB", *[""] * 6)


def test_memory_is_both_our_processes_next_to_llama_server() -> None:
    names = ("llorch-worker, front", "llorch-worker, engine", "llama-server")
    memory = (Memory(60 * MB, 40 * MB), Memory(240 * MB, 230 * MB), Memory(250 * MB, 180 * MB))
    resident = [Resident(name, one, None, "") for name, one in zip(names, memory, strict=True)]
    *_, (_, [cells]), _ = tables([measured([], resident)])
    assert cells == (
        *("small", "100 MB", "150 MB"),
        *("300 MB", "250 MB", "1.200"),
        *("270 MB", "180 MB", "1.500"),
    )


# ── a run ────────────────────────────────────────────────────────────────────────────────────────


def program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.process
@pytest.mark.long
def test_a_made_model_is_measured_next_to_both_of_llama_cpp_s_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(CHECKOUT)
    server = program(tmp_path / "server", f'exec "{sys.executable}" -m tests.tools.bench.stand_in "$@"')
    bench = program(tmp_path / "bench", "echo '[{\"avg_ts\": 151.5}]'")
    tools = ["--peer-binary", str(server), "--llama-bench", str(bench)]
    given = ["--size", "tiny", "--made", str(tmp_path / "made"), "--rounds", "1", "--threads", "1"]
    assert run(["sizes", *given, *tools, "--seed", "5", "--out", str(tmp_path / "out")]) == 1
    (size,) = json.loads((tmp_path / "out" / "sizes.json").read_text())
    assert size["name"] == "random-tiny.Q4_K"
    assert size["file_bytes"] == (tmp_path / "made" / SHAPES["tiny"].file_name).stat().st_size
    assert 0 < size["allocated_bytes"] < 10**9
    own = [(one["scenario"], one["peer"]) for one in size["report"]["lines"] if one["is_own"]]
    peers = ("llama-server", "llama-bench")
    assert own == [
        *(("1-stream", peer) for peer in peers),
        ("8-streams", peers[0]),
        *(("prompt", peer) for peer in peers),
    ]
    assert all(one["ours"][0] > 0 and one["theirs"][0] > 0 for one in size["report"]["lines"] if one["is_own"])
    assert "--prompt-lookup off" in size["report"]["circumstances"]["commands"]["llorch-worker"]
    shown = capsys.readouterr()
    rows = [row.split("\t") for row in shown.out.splitlines()]
    assert [row[0] for row in rows][:4] == [size["name"]] * 4
    # Nothing keeps up with a peer that computes nothing.
    assert "random-tiny.Q4_K: prompt: prompt is" in shown.err.splitlines()[-1]
    assert (tmp_path / "out" / "sizes.md").read_text().startswith("| 1 stream, 64 / 64 | ours | llama-server |")


@pytest.mark.process
@pytest.mark.model
def test_a_file_type_is_the_model_quantised_and_kept(
    shallow_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    given = ["--model", str(shallow_model), "--size", "Q8_0", "--made", str(made), "--rounds", "1", "--threads", "1"]
    assert run(["sizes", *given]) == 0
    (file,) = made.iterdir()
    assert file.name == f"{shallow_model.stem}.as-Q8_0.gguf"
    assert read_info(file).quant_kind == "Q8_0"
    assert capsys.readouterr().out.startswith(f"{file.stem}\t")
