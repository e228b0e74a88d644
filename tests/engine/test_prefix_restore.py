"""The next engine finds whatever part of an engine's copies has survived, and no answer changes."""

from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.fake_runner import CELL_BYTES, Request
from tests.engine.rig import Rig
from tests.queued import put_away
from worker.engine.backend import Found, Saved
from worker.engine.prefix_cache import MIN_KEPT
from worker.wire.jobs import StepDone, TokenId
from worker.wire.load import PrefixCacheFound

Part = tuple[list[TokenId], Saved]

STEMS = tuple(tuple((stem * i) % 23 for i in range(20)) for stem in (3, 5))
PROMPTS = st.lists(
    st.builds(
        lambda stem, n, more: (*stem[:n], *more), st.sampled_from(STEMS), st.integers(16, 20), st.binary(max_size=30)
    ),
    min_size=1,
    max_size=5,
).map(lambda prompts: [(*prompt, 1) for prompt in prompts])


def rig() -> Rig:
    return Rig(prefix_cache_bytes=2000 * CELL_BYTES)


def answer(engine: Rig, prompt: tuple[int, ...]) -> int:
    """Run a job, whose text the rig checks; return the number of its cached tokens."""
    job = engine.submit(Request(prompt, max_tokens=3))
    engine.run_until_idle()
    assert engine.stories[job].text == engine.outcome(job).text
    return engine.n_cached[job]


def parts_after(engine: Rig, prompts: list[tuple[int, ...]]) -> list[Part]:
    """The index after these jobs: each part once, prefixes first."""
    sequences: list[list[TokenId]] = []
    for prompt in prompts:
        answer(engine, prompt)
        sequences += (list(each.tokens) for each in engine.engine.prefix_cache.retained.values())
    put_away(engine.engine)
    index, parts = engine.engine.prefix_cache.index, dict[int, Part]()
    for tokens in sequences:
        n_matched = index.match(tokens)
        saved = index.take(tokens, n_matched)
        for end, part in zip(accumulate(each.n_tokens for each in saved), saved, strict=True):
            if end <= n_matched:
                parts[id(part)] = (tokens[:end], part)
    assert sum(saved.n_tokens for _, saved in parts.values()) == index.n_tokens
    return sorted(parts.values(), key=lambda part: len(part[0]) - part[1].n_tokens)


@settings(max_examples=15)
@given(prompts=PROMPTS)
def test_what_was_kept_is_found_as_before(prompts: list[tuple[int, ...]]) -> None:
    first, second = rig(), rig()
    parts = parts_after(first, prompts)
    second.engine.restore(Found(parts))
    found = next(frame for frame in second.frames if isinstance(frame, PrefixCacheFound))
    assert found.n_parts == len(parts)
    assert found.n_tokens == sum(saved.n_tokens for _, saved in parts) == second.engine.prefix_cache.index.n_tokens
    for tokens, _ in parts:
        assert second.engine.prefix_cache.index.match(tokens) == len(tokens)
    longest = max((tokens for tokens, _ in parts), key=len)
    assert answer(second, (*longest, 2, 2)) == len(longest)


@settings(max_examples=15)
@given(prompts=PROMPTS, lost=st.sets(st.integers(0, 9)), order=st.randoms(use_true_random=False))
def test_whatever_is_lost_comes_twice_or_in_disorder_answers_are_right(
    prompts: list[tuple[int, ...]], lost: set[int], order: object
) -> None:
    second = rig()
    parts = [part for i, part in enumerate(parts_after(rig(), prompts)) if i not in lost]
    found = [*parts, *parts]
    order.shuffle(found)  # type: ignore[attr-defined]  # hypothesis gives a Random
    second.engine.restore(Found(found, n_dropped=len(lost), dropped_because="it was lost"))
    for prompt in prompts:
        answer(second, prompt)


def test_a_longer_part_than_was_known_is_kept_behind_what_is_known() -> None:
    """Two workers have kept the same beginning, each in a part that goes on its own way."""
    stem, ours, theirs = (5,) * 20, (1,) * 20, (2,) * 20
    engine = rig()
    for rest in (ours, theirs):
        engine.engine.restore(Found(parts_after(rig(), [(*stem, *rest)])))
    assert [answer(engine, (*stem, *rest, 25)) for rest in (ours, theirs)] == [40, 40]


def test_the_last_jobs_cells_are_copied_out_and_stay_where_they_are() -> None:
    engine = rig()
    prompt = tuple(range(1, MIN_KEPT + 9))
    answer(engine, prompt)
    n_retained = engine.n_retained
    engine.engine.back_up()
    found = engine.frames[-1]
    assert isinstance(found, StepDone)
    assert (found.prefix_tokens, engine.n_retained) == (n_retained, n_retained)
    n_frames, n_saved = len(engine.frames), engine.runner.kv.n_saved
    engine.engine.back_up()
    assert (len(engine.frames), engine.runner.kv.n_saved) == (n_frames, n_saved), "once"
    assert answer(engine, (*prompt, 9)) == len(prompt)
    assert engine.runner.kv.n_saved == n_saved, "found where it was, without a copy"


@given(
    lengths=st.lists(st.integers(MIN_KEPT, 60), min_size=1, max_size=4),
    n_kept=st.integers(0, 250),
)
def test_a_backup_of_several_prompts_comes_to_an_end_with_the_last_used_whatever_there_is_room_for(
    lengths: list[int], n_kept: int
) -> None:
    """Each of them has a slot of its own on a GPU."""
    engine = Rig(n_retained=4, max_dead_cells=400, prefix_cache_bytes=n_kept * CELL_BYTES)
    prompts = [tuple((job * 7 + at) % 50 + 4 for at in range(n)) for job, n in enumerate(lengths)]
    for prompt in prompts:
        answer(engine, prompt)
    n_copies = 0
    while engine.engine.back_up():
        n_copies += 1
        assert n_copies <= len(prompts), "each is copied once"
    index = engine.engine.prefix_cache.index
    assert index.n_bytes <= n_kept * CELL_BYTES
    if sum(lengths) <= n_kept:
        assert [index.match(list(map(TokenId, prompt))) for prompt in prompts] == lengths
    elif lengths[-1] <= n_kept:
        assert index.match(list(map(TokenId, prompts[-1]))) == lengths[-1], "the last used before all others"
