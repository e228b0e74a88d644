"""Windows are the text in order, once short and once long; prompts of one length; the rows are the reference's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.case import plan_windows, windows_of
from parity.evidence import LONG, SHORT
from parity.reference.model import Reference
from tests.parity.tiny_llama import BOS, write_tiny_llama
from worker.errors import UsageError

pytestmark = pytest.mark.torch

TEXT = "abcdefgh" * LONG
PROMPTS = ("abcdabcdabcdabc", "hhhh", "abcdefgh")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference.open(write_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama"), n_threads=1)


@given(st.lists(st.integers(0, 99)), st.integers(1, 9), st.none() | st.integers(100, 101))
def test_windows_joined_are_the_text_without_its_rest(ids: list[int], length: int, bos: int | None) -> None:
    windows = windows_of(ids, "short", length, bos)
    n_front = 0 if bos is None else 1
    assert all(window.tokens[:n_front] == (bos,) * n_front for window in windows)
    assert all(len(window.tokens) == length + n_front for window in windows)
    assert [token for window in windows for token in window.tokens[n_front:]] == ids[: len(ids) // length * length]


def test_plan_has_the_text_twice_and_the_prompts_once(tiny: Reference) -> None:
    windows = plan_windows(tiny, TEXT, PROMPTS, n_tokens=2 * LONG, n_continued=5)
    of = {kind: [window for window in windows if window.kind == kind] for kind in ("short", "long", "continuation")}
    assert [len(found) for found in of.values()] == [2 * LONG // SHORT, 2, 3]
    for kind in ("short", "long"):
        assert [token for window in of[kind] for token in window.tokens[1:]] == tiny.tokenize(TEXT)[: 2 * LONG]
    assert all(window.tokens[0] == BOS for window in windows)


def test_prompts_are_cut_to_the_shortest_and_continued_by_the_reference(tiny: Reference) -> None:
    windows = [w for w in plan_windows(tiny, TEXT, PROMPTS, n_tokens=SHORT, n_continued=5) if w.kind == "continuation"]
    for window, prompt in zip(windows, PROMPTS, strict=True):
        assert window.n_prompt == 1 + min(map(len, PROMPTS))
        assert list(window.tokens[: window.n_prompt]) == [BOS, *tiny.tokenize(prompt)][: window.n_prompt]
        assert [list(window.tokens[window.n_prompt :])] == tiny.greedy([window.tokens[: window.n_prompt]], 5)


@pytest.mark.parametrize(
    ("text", "n_tokens", "complaint"),
    [
        ("abc", SHORT, "the text has 3 tokens in this model's vocabulary; 64 are needed"),
        ("abc", 3, "3 tokens are too few"),
    ],
)
def test_text_that_is_too_short_is_refused(text: str, n_tokens: int, complaint: str, tiny: Reference) -> None:
    with pytest.raises(UsageError, match=complaint):
        plan_windows(tiny, text, PROMPTS, n_tokens=n_tokens)
