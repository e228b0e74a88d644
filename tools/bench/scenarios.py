"""The scenarios: what each one asks, which numbers it is for, and their bounds.

Pure: all chance comes from the prompts' seed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from tools.bench.measures import (
    USUAL,
    Ask,
    Bound,
    Measure,
    at_least,
    at_most,
    computed,
    computed_by_new,
    first_token,
    gap_at_ends,
    last_first_token,
    longest_gap_beside_the_last,
    stream_rate,
    total_rate,
)
from tools.bench.prompts import REAL, WORDS, Prompts, Text, agent_loop, code_edit, growing, in_sentences
from worker.config.settings import Settings

LLAMA_BENCH, LLAMA_BATCHED_BENCH = "llama-bench", "llama-batched-bench"
Role = Literal["judged", "beside", "speculating"]
"""The role of a peer: a bound for us, a column of the report, or a bound for us with drafts."""
_USUAL_PEERS, _LOOKUP_PEERS = frozenset[Role]({"judged", "beside"}), frozenset[Role]({"judged", "speculating"})
_JUDGED_ALONE = frozenset[Role]({"judged"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One line of the table."""

    name: str
    title: str
    """Words in / tokens out."""
    asks: Callable[[Prompts], list[Ask]]
    """The requests of a round, all sides' the same; sorted by phase."""
    own: tuple[Measure, ...]
    """The measures that it is for; the headline first."""
    text: Text = WORDS
    """The kind of text of its prompts."""
    has_drafts: bool = True
    """Our worker drafts tokens from earlier text, as it does by default."""
    peers: frozenset[Role] = _USUAL_PEERS
    tool: str = ""
    """llama.cpp's benchmark that has the same number without HTTP, if there is one."""

    @property
    def measures(self) -> tuple[Measure, ...]:
        named = {measure.name for measure in self.own}
        return (*self.own, *(measure for measure in USUAL if measure.name not in named))


def _streams(
    n_streams: int, n_words: int = 64, n_tokens: int = 96, text: Text = WORDS
) -> Callable[[Prompts], list[Ask]]:
    return lambda prompts: [Ask(prompt=prompts.of(n_words, text), n_tokens=n_tokens) for _ in range(n_streams)]


def _in_turn(asks: list[Ask]) -> list[Ask]:
    return [replace(ask, phase=phase) for phase, ask in enumerate(asks)]


def _alone(n_words: int, n_tokens: int, *, n_times: int = 3, text: Text = WORDS) -> Callable[[Prompts], list[Ask]]:
    """One stream after another: a round's number is the median of them."""
    return lambda prompts: _in_turn(_streams(n_times, n_words, n_tokens, text)(prompts))


def _generating(
    n_streams: int, text: Text = WORDS, *, has_drafts: bool, n_tokens: int = 96, n_times: int = 3
) -> Scenario:
    """Streams of 64 words. The gain of drafts is reported against the one peer that judges them."""
    is_alone = n_streams == 1
    minimum = _MIN_OF_ONE_STREAM[text, has_drafts] if is_alone else 1.0
    return Scenario(
        name=_named(f"{n_streams}-stream{'' if is_alone else 's'}", text) + ("" if has_drafts else "-no-drafts"),
        title=f"{n_streams} stream{'' if is_alone else 's'}, 64 / {n_tokens}",
        asks=_alone(64, n_tokens, n_times=n_times, text=text) if is_alone else _streams(n_streams, 64, n_tokens, text),
        own=((stream_rate if is_alone else total_rate)(at_least(minimum)),),
        text=text,
        has_drafts=has_drafts,
        peers=_JUDGED_ALONE if has_drafts else _USUAL_PEERS,
        tool="" if has_drafts else LLAMA_BENCH if is_alone else LLAMA_BATCHED_BENCH,
    )


_MIN_OF_ONE_STREAM = {
    (WORDS, True): 1.3,  # a greedy answer to random words repeats itself
    (REAL, True): 1.0,
    (WORDS, False): 0.98,
    (REAL, False): 0.98,
}
"""The bound by text and by the use of drafts."""


def _named(name: str, text: Text) -> str:
    return name if text == WORDS else f"{name}-real"


def _first_token(text: Text = WORDS, *, n_times: int = 3) -> Scenario:
    return Scenario(
        name=_named("first-token", text),
        title="1 stream, 400 / 8",
        asks=_alone(400, 8, n_times=n_times, text=text),
        own=(first_token(at_most(1.03)),),
        text=text,
    )


def _shared_prefix(prompts: Prompts) -> list[Ask]:
    common = prompts.of(400)
    return [Ask(prompt=f"{common} {in_sentences(prompts.words(8))}", n_tokens=16) for _ in range(8)]


def _again(prompts: Prompts) -> list[Ask]:
    once = prompts.of(400)
    again = f"{once} {in_sentences(prompts.words(2))}"
    return _in_turn([Ask(prompt=once, n_tokens=8), Ask(prompt=again, n_tokens=8)])


_LONGEST_GAP_MS = 1.5 * Settings().itl_target_ms


def _late_prompt(text: Text = WORDS) -> Scenario:
    """The late prompt is measured without drafts, because with drafts the streams may end before it is read."""

    def asks(prompts: Prompts) -> list[Ask]:
        late = Ask(prompt=prompts.of(900, text), n_tokens=8, is_late=True)
        return [*_streams(3, 24, 160, text)(prompts), late]

    return Scenario(
        name=_named("late-prompt", text),
        title="3 streams, 24 / 160, a 900-word prompt arrives",
        asks=asks,
        own=(
            last_first_token(at_most(1.1)),
            longest_gap_beside_the_last(at_most(0.1, or_value=_LONGEST_GAP_MS)),
        ),
        text=text,
        has_drafts=False,
    )


def _sampled(n_tokens: int = 96, *, n_times: int = 3) -> Scenario:
    def asks(prompts: Prompts) -> list[Ask]:
        chance = prompts.chance()
        alone = _alone(64, n_tokens, n_times=n_times)(prompts)
        return [replace(ask, temperature=0.8, top_p=0.95, seed=chance.getrandbits(31)) for ask in alone]

    return Scenario(
        name="sampled",
        title=f"temperature 0.8, top-p 0.95, top-k 0, 1 stream, 64 / {n_tokens}",
        asks=asks,
        own=(stream_rate(at_least(1.25)),),
    )


def _ending(prompts: Prompts) -> list[Ask]:
    """Streams that end one after another, and three that go on."""
    lengths = (16, 28, 40, 52, 64, 96, 96, 96)
    return [Ask(prompt=prompts.of(64), n_tokens=n_tokens) for n_tokens in lengths]


def _agent_loop(n_turns: int) -> Scenario:
    return Scenario(
        name="agent-loop",
        title=f"{n_turns} requests of a growing conversation, JSON and code, 96 out each",
        asks=lambda prompts: _in_turn([Ask(prompt=prompt, n_tokens=96) for prompt in agent_loop(prompts, n_turns)]),
        own=(total_rate(at_least(1.3), at_least(1.3)),),
        text=REAL,
        peers=_LOOKUP_PEERS,
    )


_SHARED_PREFIX = Scenario(
    name="shared-prefix",
    title="8 at once, 400 common + 8 own / 16",
    asks=_shared_prefix,
    own=(first_token(at_most(0.2)),),
)
_AGAIN = Scenario(
    name="again",
    title="a 400-word prompt again + 2 words / 8",
    asks=_again,
    own=(last_first_token(at_most(1.0)),),
)

WARM_UP = Scenario(name="warm-up", title="1 stream, 64 / 48", asks=_alone(64, 48, n_times=1), own=(stream_rate(),))
"""The scenario that every server runs first; its numbers are not used."""

SCENARIOS: tuple[Scenario, ...] = (
    *(_generating(n_streams, has_drafts=False) for n_streams in (1, 4, 8, 16)),
    *(_generating(n_streams, has_drafts=True) for n_streams in (1, 4, 8, 16)),
    *(_generating(n_streams, REAL, has_drafts=has_drafts) for has_drafts in (False, True) for n_streams in (1, 8)),
    _first_token(),
    _first_token(REAL),
    _SHARED_PREFIX,
    _AGAIN,
    _late_prompt(),
    _late_prompt(REAL),
    _sampled(),
    Scenario(
        name="code-edit",
        title="a file repeated with an edit, 1 stream, 160 out",
        asks=lambda prompts: _in_turn([Ask(prompt=code_edit(prompts), n_tokens=160) for _ in range(2)]),
        own=(stream_rate(at_least(1.6), at_least(1.0)),),
        text=REAL,
        peers=_LOOKUP_PEERS,
    ),
    _agent_loop(20),
)
"""The scenarios of a small model."""


ON_GPU: tuple[Scenario, ...] = (
    *SCENARIOS,
    *(_generating(32, has_drafts=has_drafts) for has_drafts in (False, True)),
    Scenario(
        name="ends",
        title="8 streams, 64 / 16 to 96, of which 5 end while others go on",
        asks=_ending,
        own=(gap_at_ends(Bound("at most", 1.0, "value")),),
        peers=_JUDGED_ALONE,
    ),
)
"""The scenarios of a worker on a GPU, whatever the size of its model."""

LARGE: tuple[Scenario, ...] = (
    *(_generating(n_streams, has_drafts=False, n_tokens=48, n_times=1) for n_streams in (1, 4, 8, 16)),
    *(
        _generating(n_streams, REAL, has_drafts=has_drafts, n_tokens=48, n_times=1)
        for has_drafts in (False, True)
        for n_streams in (1, 8)
    ),
    _first_token(n_times=1),
    _first_token(REAL, n_times=1),
    replace(_SHARED_PREFIX, peers=_JUDGED_ALONE),
    _AGAIN,
    _late_prompt(),
    _sampled(48, n_times=1),
    _agent_loop(8),
)
"""The scenarios for a model of half a billion weights or more: the same with fewer tokens, each once."""


_WORDS_OF_A_TURN = 225
"""About 300 tokens."""


def _conversations(n_at_once: int, n_turns: int, n_common_words: int) -> Callable[[Prompts], list[Ask]]:
    """Turn by turn, all conversations at once; at the end what they have in common, alone, which says its length."""

    def asks(prompts: Prompts) -> list[Ask]:
        common = prompts.of(n_common_words)
        each = [growing(prompts, common, n_turns, _WORDS_OF_A_TURN) for _ in range(n_at_once)]
        turns = [
            Ask(prompt=prompt, n_tokens=_ANSWER_TOKENS, phase=turn)
            for turn, together in enumerate(zip(*each, strict=True))
            for prompt in together
        ]
        return [*turns, Ask(prompt=common, n_tokens=2, phase=n_turns)]

    return asks


_ANSWER_TOKENS = 16


def _conversing(name: str, title: str, n_at_once: int, n_turns: int, n_common_words: int) -> Scenario:
    return Scenario(
        name=name,
        title=title,
        asks=_conversations(n_at_once, n_turns, n_common_words),
        own=(
            computed_by_new(Bound("at most", 1.1, "value"), n_conversations=n_at_once),
            computed(at_most(1.0)),
            total_rate(at_least(1.0)),
        ),
        peers=_JUDGED_ALONE,
    )


CONVERSATIONS: tuple[Scenario, ...] = (
    _conversing("conversation", "a conversation of 20 turns of 300 tokens, 16 out each", 1, 20, 48),
    _conversing("8-conversations", "8 at once, 10 turns of 300 tokens after 400 common words, 16 out each", 8, 10, 400),
)
"""The scenarios that are asked by name alone: conversations that grow, of models whose memory cannot be cut above
all."""
