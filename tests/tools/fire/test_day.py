"""A day of traffic: what counts as growth, and a run of the command that Ctrl-C ends."""

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.fire.day import MAX_GROWTH_BYTES, MAX_MORE, Footprint, Sample, grown

MB = 1000**2
N_SAMPLES = 200
FRONT = Footprint(90 * MB, 60 * MB, 18, 2)


def sample(
    n: int, own_bytes: float = 50 * MB, *, n_descriptors: int = 20, n_threads: int = 5, n_lost: int = 0
) -> Sample:
    footprint = Footprint(2 * int(own_bytes), int(own_bytes), n_descriptors, n_threads)
    return Sample(
        at_s=10.0 * (n + 1),
        n_requests=n,
        n_tokens=n,
        n_refused=0,
        n_lost=n_lost,
        cached_bytes=0,
        processes={"front": FRONT, "engine": footprint},
    )


@given(warm_up=st.floats(0, 500 * MB), noise=st.lists(st.floats(0, 2 * MB), min_size=N_SAMPLES, max_size=N_SAMPLES))
def test_growth_within_the_first_tenth_and_noise_are_none(warm_up: float, noise: list[float]) -> None:
    samples = [sample(n, 50 * MB + (warm_up if n >= 15 else 0) + noise[n]) for n in range(N_SAMPLES)]
    assert grown(samples) == []


@given(factor=st.floats(1.4, 100))
def test_a_leak_is_found_however_slow_it_is(factor: float) -> None:
    """The medians compared are 0.75 of the whole time apart, at the least."""
    leak_bytes = factor * MAX_GROWTH_BYTES / N_SAMPLES
    (line,) = grown([sample(n, 50 * MB + n * leak_bytes) for n in range(N_SAMPLES)])
    assert line.startswith("own_bytes of the engine grew by ")


def test_memory_that_is_given_back_is_no_growth_and_descriptors_threads_and_lost_answers_are_found() -> None:
    # The samples are ten seconds apart; the first of each minute follows a return of memory.
    samples = [sample(n, 50 * MB + (0.1 * n * MB if (n + 1) % 6 else 0)) for n in range(N_SAMPLES)]
    assert grown(samples) == []
    samples = [sample(n, n_descriptors=20 + n, n_threads=5 + n) for n in range(N_SAMPLES)]
    assert [line.split()[0] for line in grown(samples)] == ["n_descriptors", "n_threads"]
    assert grown([sample(n, n_descriptors=20 + n * MAX_MORE // N_SAMPLES) for n in range(N_SAMPLES)]) == []
    assert grown([*(sample(n) for n in range(9)), sample(9, n_lost=2)]) == ["2 lost"]
    assert grown([]) == ["nothing was sampled"]


@pytest.mark.process
@pytest.mark.long
def test_ctrl_c_ends_a_day_with_its_figures_and_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.fire", "day", "--folder", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as tool:
        assert tool.stdout is not None
        assert "is under fire" in tool.stdout.readline()
        processes = psutil.Process(tool.pid).children(recursive=True)
        tool.send_signal(signal.SIGINT)
        said = tool.stdout.read()
        code = tool.wait(120)
    assert code in {0, 1}, said
    assert said.startswith("stopping after the burst at hand\n")
    assert " 0 lost; front " in said
    last = msgspec.json.decode((tmp_path / "day-attention.jsonl").read_bytes().splitlines()[-1], type=Sample)
    assert last.n_requests > 0
    assert last.n_tokens > 0
    assert last.processes.keys() == {"front", "engine"}
    assert processes
    assert not [process for process in processes if process.is_running()]
