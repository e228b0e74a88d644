"""`bench kernels`: the verdict, the table, and going on after a stop; the programs are stand-ins with known rates."""

import json
import sys
from pathlib import Path

import msgspec
import pytest

from tools.bench.__main__ import run
from tools.bench.kernels import ROWS, Pair, cells, read, write

RATES = {n_rows: 10.0 * n_rows for n_rows in ROWS}


def program(path: Path, factor: float, *, code: int = 0) -> Path:
    """A llama-bench that says what it was asked and answers with RATES times the factor."""
    lines = [{"n_prompt": n_rows, "avg_ts": rate * factor} for n_rows, rate in RATES.items()]
    path.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"open({str(path.with_suffix('.asked'))!r}, 'a').write(' '.join(sys.argv[1:]) + chr(10))\n"
        f"print({json.dumps(lines)!r})\nsys.exit({code})\n"
    )
    path.chmod(0o755)
    return path


def asked(path: Path) -> list[str]:
    log = path.with_suffix(".asked")
    return log.read_text().splitlines() if log.exists() else []


class Bench:
    """A run of the command in a folder of its own."""

    def __init__(self, folder: Path, factor: float = 1.0) -> None:
        self.folder = folder
        self.ours, self.stock = program(folder / "ours", factor), program(folder / "stock", 1.0)
        self.model = folder / "m.gguf"
        self.model.write_bytes(b"GGUF")
        (folder / "models").mkdir()
        for name in ("Q4_K_M", "Q8_0"):
            (folder / "models" / f"m.as-{name}.gguf").write_bytes(bytes(1000))

    def run(self, *arguments: str) -> int:
        programs = ("--ours", str(self.ours), "--stock", str(self.stock), "--compiler", "a compiler")
        places = ("--model", str(self.model), "--out", str(self.folder))
        return run(["kernels", *programs, *places, "--threads", "1", "--rounds", "2", *arguments])


def test_rates_that_hold_are_written_and_a_run_that_was_stopped_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(tmp_path, 0.98)
    assert bench.run("--type", "Q4_K_M") == 0
    (pair,) = read(tmp_path).values()
    assert (pair.file_type, pair.n_threads, pair.compiler, pair.file_bytes) == ("Q4_K_M", 1, "a compiler", 1000)
    assert {n_rows: pair.ratio(n_rows) for n_rows in ROWS} == pytest.approx(dict.fromkeys(ROWS, 0.98))
    assert pair.ours[8] == [pytest.approx(78.4)] * 2
    assert "9.8 / 10 = 0.98" in (tmp_path / "kernels.md").read_text()
    assert "Q4_K_M" in capsys.readouterr().out
    write([pair, msgspec.structs.replace(pair, compiler="another")], tmp_path)
    assert bench.run("--type", "Q4_K_M", "--type", "Q8_0") == 0
    assert [line.count("Q8_0") for line in asked(bench.ours)] == [0, 0, 1, 1]
    found = [(each.file_type, each.compiler) for each in read(tmp_path).values()]
    assert found == [("Q4_K_M", "a compiler"), ("Q4_K_M", "another"), ("Q8_0", "a compiler")]


def test_a_rate_below_stocks_is_named_and_fails_and_so_is_a_program_that_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(tmp_path, 0.5)
    assert bench.run("--type", "Q4_K_M") == 1
    error = capsys.readouterr().err
    assert all(f"Q4_K_M, 1 threads, {n_rows} rows: 0.500, at least 0.97" in error for n_rows in ROWS)
    program(bench.stock, 1.0, code=3)
    assert bench.run("--type", "Q8_0") == 1
    assert f"{bench.stock} ended with 3" in capsys.readouterr().err


def test_the_middle_of_the_rounds_counts_and_the_share_is_of_a_row() -> None:
    pair = Pair(
        file_type="Q4_0",
        n_threads=2,
        compiler="c",
        cpu="p",
        created="2026-11-28T00:00:00Z",
        file_bytes=10**9,
        read_bytes_per_s=20e9,
        ours={n_rows: [1.0, 100.0, 10.0] for n_rows in ROWS},
        stock={n_rows: [10.0] for n_rows in ROWS},
    )
    assert (pair.ratio(1), pair.share) == pytest.approx((1, 0.5))
    assert not list(pair.missed)
    columns, rows = cells([pair])
    assert len(columns) == len(rows[0]) == len(ROWS) + 3
    assert (rows[0][-1], rows[-1][0]) == ("50% of 20.0 GB/s", "p; c; 2026-11-28")
