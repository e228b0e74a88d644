"""Control tokens divide reasoning from content, however the text is cut into tokens."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.fake_runner import first_stop
from worker.engine.channels import (
    NO_CONTROL_TOKENS,
    Channel,
    ChannelState,
    ChannelText,
    TextStream,
    Transition,
)
from worker.engine.families import FAMILIES, marks_among
from worker.wire.jobs import MarkUse, TokenId

CONTROLS = {
    name: TokenId(1000 + number)
    for number, name in enumerate(dict.fromkeys([*(name for family in FAMILIES for name in family), "<|other|>"]))
}
MARKS = marks_among(CONTROLS)
LETTERS = TokenId(1)
"""Any token that is no control token."""

Drawn = tuple[TokenId, bytes]
Shown = list[tuple[bool, str]]
"""(whether it is reasoning, text), in order."""

TEXTS = st.text("abé🙂 <|\n", max_size=12)


def letters(text: str, cuts: Sequence[int] = ()) -> list[Drawn]:
    """A text as tokens of any bytes."""
    data = text.encode()
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [(LETTERS, data[a:b]) for a, b in pairwise(edges)]


def mark(name: str) -> list[Drawn]:
    return [(CONTROLS[name], b"")]


def named(text: str) -> list[Drawn]:
    """A text in which a control token may stand by its name."""
    parts = re.split(f"({'|'.join(map(re.escape, CONTROLS))})", text)
    return [each for part in parts for each in (mark(part) if part in CONTROLS else letters(part))]


def harmony(channel: str, text: str, cuts: Sequence[int] = ()) -> list[Drawn]:
    head = [*mark("<|channel|>"), *letters(channel, cuts), *mark("<|message|>")]
    return [*head, *letters(text, cuts), *mark("<|end|>"), *mark("<|start|>"), *letters("assistant", cuts)]


def shown(drawn: Sequence[Drawn], text: ChannelText | None = None, stops: Sequence[str] = ()) -> Shown:
    text = text or ChannelText(stops, MARKS, "split")
    parts = [(text.push(token, piece), text.is_reasoning) for token, piece in drawn]
    parts.append((text.flush(), text.is_reasoning))
    return [(is_reasoning, part) for part, is_reasoning in parts if part]


def content(parts: Shown) -> str:
    return "".join(part for is_reasoning, part in parts if not is_reasoning)


def reasoning(parts: Shown) -> str:
    return "".join(part for is_reasoning, part in parts if is_reasoning)


@given(
    st.lists(st.tuples(st.sampled_from(("analysis", "commentary", "final", "final json", "??")), TEXTS), max_size=5),
    st.lists(st.integers(0, 50), max_size=4),
)
def test_a_channel_says_whether_text_is_the_users_in_any_order_and_cut(
    messages: list[tuple[str, str]], cuts: list[int]
) -> None:
    parts = shown([each for channel, text in messages for each in harmony(channel, text, cuts)])
    said = [text for channel, text in messages if channel.split()[0] in ("final", "commentary")]
    others = [text for channel, text in messages if channel.split()[0] in ("analysis", "??")]
    assert (reasoning(parts), content(parts)) == ("".join(others), "".join(said))


PAIRS = [family for family in FAMILIES if Transition.THINK in family.values()]


@pytest.mark.parametrize("family", PAIRS, ids=lambda family: next(iter(family)))
@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=3), st.lists(st.integers(0, 50), max_size=4))
def test_what_is_between_a_pair_is_reasoning(
    family: dict[str, Transition], turns: list[tuple[str, str]], cuts: list[int]
) -> None:
    opening, closing = list(family)[:2]
    parts = shown(
        [
            each
            for thought, answer in turns
            for each in (*mark(opening), *letters(thought, cuts), *mark(closing), *letters(answer, cuts))
        ]
    )
    assert reasoning(parts) == "".join(thought for thought, _ in turns)
    assert content(parts) == "".join(answer for _, answer in turns)


def muse(recipient: str, text: str, cuts: Sequence[int] = ()) -> list[Drawn]:
    head = [*letters(f" to={recipient}", cuts), *mark("<|message|>")]
    return [*head, *letters(text, cuts), *mark("<|eom|>"), *mark("<|start|>"), *letters("assistant")]


@given(
    st.lists(st.tuples(st.sampled_from(("self", "user", "weather")), TEXTS), max_size=5),
    st.lists(st.integers(0, 50), max_size=4),
    st.booleans(),
)
def test_in_the_form_of_muse_the_recipient_says_what_a_message_is(
    messages: list[tuple[str, str]], cuts: list[int], reads_calls: bool
) -> None:
    text = ChannelText((), MARKS, "split", ChannelState(Channel.ROLE), reads_calls=reads_calls)
    parts = shown([each for recipient, body in messages for each in muse(recipient, body, cuts)], text)
    hidden = ("self",) if reads_calls else ("self", "weather")
    bodies = [(recipient, body) for recipient, body in messages if body or recipient == "weather"]
    assert reasoning(parts) == "".join(body for recipient, body in bodies if recipient in hidden)
    heads = {"weather": "<|channel|>commentary to=weather<|message|>"}
    assert content(parts).replace("<|eom|>", "") == "".join(
        heads.get(recipient, "") + body for recipient, body in bodies if recipient not in hidden
    )


def test_a_reasoning_that_a_prompt_has_opened_in_text_has_its_marker() -> None:
    prompt = b"ab Thoughts:\n"
    marks = replace(NO_CONTROL_TOKENS, text_markers=("Thoughts:\n", "\nAnswer:"))
    marks = replace(marks, piece=lambda token: prompt[token : token + 1])
    tokens = [TokenId(place) for place in range(len(prompt))]
    opened, other = marks.place_after(tokens), marks.place_after(tokens[:11])
    assert (opened.is_opened, other.is_opened) == (True, False)
    uses: list[tuple[ChannelState, MarkUse, str]] = [
        (opened, "split", "Thoughts:\nHm."),
        (other, "split", "Hm."),
        (opened, "shown", "Hm."),
    ]
    for place, use, expected in uses:
        assert content(shown(letters("Hm.", [1]), ChannelText((), marks, use, place))) == expected
    for stop in (":", "\n", "s:\nH"):
        text = ChannelText((stop,), marks, "split", opened)
        assert content(shown(letters("Hm.", [1]), text)) == "Thoughts:\nHm.", "no stop is looked for in the prompt"
        assert text.matched is None


def test_a_header_may_end_with_its_line() -> None:
    drawn = [*mark("<|channel>"), *letters("thought\nHm.", [3, 9]), *mark("<channel|>"), *letters("Yes.")]
    parts = shown(drawn)
    assert (reasoning(parts), content(parts)) == ("Hm.", "Yes.")


def test_a_role_and_a_message_without_a_channel_are_no_reasoning() -> None:
    drawn = [*mark("<|start|>"), *letters("assistant"), *mark("<|message|>"), *letters("Hello")]
    assert shown(drawn) == [(False, "Hello")]


@pytest.mark.parametrize(
    ("prompt", "channel"),
    [
        (["<|message|>", "<|end|>", "<|start|>"], Channel.ROLE),
        (["[THINK]", "[/THINK]", "[THINK]"], Channel.REASONING),
        (["[THINK]", "[/THINK]", "<|other|>"], Channel.CONTENT),
        (["<|channel|>"], Channel.HEADER),
        ([], Channel.CONTENT),
    ],
)
def test_a_prompt_says_where_the_answer_begins(prompt: list[str], channel: Channel) -> None:
    tokens = [token for name in prompt for token in (CONTROLS[name], LETTERS)]
    assert MARKS.place_after(tokens).channel is channel


def test_an_answer_that_begins_inside_the_reasoning_is_reasoning_until_it_ends() -> None:
    text = ChannelText((), MARKS, "split", ChannelState(Channel.REASONING))
    assert shown([*letters("Hm."), *mark("[/THINK]"), *letters("Yes.")], text) == [(True, "Hm."), (False, "Yes.")]


@pytest.mark.parametrize("channel", [Channel.ROLE, Channel.HEADER])
@given(TEXTS, st.lists(st.integers(0, 50), max_size=4))
def test_an_answer_without_the_header_that_its_prompt_has_begun_is_content(
    channel: Channel, answer: str, cuts: list[int]
) -> None:
    text = ChannelText((), MARKS, "split", ChannelState(channel))
    parts = shown(letters(answer, cuts), text)
    assert (reasoning(parts), content(parts)) == ("", answer)
    assert text.n_reasoning == 0 or not answer


@given(TEXTS, TEXTS, st.lists(st.integers(0, 50), max_size=4))
def test_no_stop_spans_two_channels_and_what_was_held_back_stays_in_its_own(
    thought: str, answer: str, cuts: list[int]
) -> None:
    drawn = [*mark("[THINK]"), *letters(thought + "ST", cuts), *mark("[/THINK]"), *letters("OP" + answer, cuts)]
    parts = shown(drawn, stops=["STOP"])
    assert reasoning(parts) == thought + "ST"
    assert content(parts) == "OP" + answer


@given(TEXTS, TEXTS, st.lists(st.integers(0, 50), max_size=4), st.lists(st.sampled_from("ab\n é"), max_size=3))
@pytest.mark.parametrize("pair", [("[THINK]", "[/THINK]"), ("<|channel|>analysis<|message|>", "<|end|>")])
def test_a_stop_ends_the_answer_and_never_its_reasoning(
    pair: tuple[str, str], thought: str, answer: str, cuts: list[int], stops: list[str]
) -> None:
    """White space behind the reasoning belongs to its marker."""
    text = ChannelText(stops, MARKS, "split")
    drawn = [*named(pair[0]), *letters(thought, cuts), *mark(pair[1]), *letters(answer, cuts)]
    told = []
    for token, piece in drawn:
        told.append((text.push(token, piece), text.is_reasoning))
        if text.matched is not None:
            break
    told.append((text.flush(), text.is_reasoning))
    words = answer.lstrip()
    stopped = first_stop(words, stops)
    assert "".join(part for part, is_reasoning in told if is_reasoning) == thought
    shown_words = words if stopped is None else stopped[0]
    assert "".join(part for part, is_reasoning in told if not is_reasoning) == (
        answer[: len(answer) - len(words)] + shown_words
    )
    assert text.matched == (stopped and stopped[1])


def test_where_all_is_content_a_stop_ends_the_reasoning_too() -> None:
    text = ChannelText(["b"], MARKS, "split", stops_anywhere=True)
    assert shown([*mark("[THINK]"), *letters("abc"), *mark("[/THINK]"), *letters("d")], text) == [(True, "a")]
    assert text.matched == "b"


@pytest.mark.parametrize("reads_calls", [True, False])
def test_a_stop_is_looked_for_in_a_call_if_calls_are_read(reads_calls: bool) -> None:
    text = ChannelText(["}"], MARKS, "split", reads_calls=reads_calls)
    drawn = [*mark("<|channel|>"), *letters("commentary to=functions.get"), *mark("<|message|>"), *letters('{"a": 1}')]
    assert shown([*drawn, *mark("<|call|>")], text)[-1][1].endswith('{"a": 1' if reads_calls else '{"a": 1}')
    assert text.matched == ("}" if reads_calls else None)


def test_a_call_that_ends_a_reasoning_in_text_is_looked_at() -> None:
    """The reasoning's markers are no tokens, the call's are."""
    call = TokenId(7)
    marks = replace(NO_CONTROL_TOKENS, names={call: "<call>"}, calls=frozenset({call}), enders=frozenset({call}))
    marks = replace(marks, text_markers=("<think>", "</think>"))
    text = ChannelText(["x"], marks, "split", reads_calls=True)
    parts = shown([*letters("<think>x"), (call, b""), *letters("yxz")], text)
    assert (content(parts), text.matched) == ("<think>x<call>y", "x")


def test_markers_of_a_reasoning_that_are_tokens_between_words_are_shown() -> None:
    """The reader finds the reasoning by them, with tools and without."""
    opening, end = TokenId(7), TokenId(8)
    marks = replace(NO_CONTROL_TOKENS, names={opening: "<|open|>", end: "<|sep|>"}, calls=frozenset({opening, end}))
    marks = replace(marks, text_markers=("<|open|>think<|sep|>", "<|close|>think<|sep|>"))
    drawn = [(opening, b""), *letters("think"), (end, b""), *letters("a")]
    for reads_calls in (True, False):
        text = ChannelText(["think", "a"], marks, "split", reads_calls=reads_calls)
        assert content(shown(drawn, text)) == "<|open|>think<|sep|>a"


@given(st.lists(st.sampled_from(["<|channel|>", "[THINK]", "<|other|>", "text", "é"]), max_size=8))
def test_marks_are_shown_by_their_names_or_not_at_all(names: list[str]) -> None:
    drawn = [each for name in names for each in (mark(name) if name in CONTROLS else letters(name, [1]))]
    hidden = ChannelText((), MARKS)
    assert content(shown(drawn, ChannelText((), MARKS, "shown"))) == "".join(names)
    assert content(shown(drawn, hidden)) == "".join(name for name in names if name not in CONTROLS)
    assert hidden.n_reasoning == 0


def test_names_that_are_ordinary_tokens_divide_nothing() -> None:
    marks = marks_among({"[THINK]": TokenId(5), "<|channel|>": TokenId(6)})
    assert not marks.turns
    text = ChannelText((), marks, "split")
    assert shown([(TokenId(5), b""), (LETTERS, b"[/THINK]x")], text) == [(False, "[/THINK]x")]


def test_all_tokens_that_are_not_the_answers_are_counted() -> None:
    text = ChannelText((), MARKS, "split")
    drawn = [*harmony("analysis", "ab", [1]), *mark("<|channel|>"), *letters("final"), *mark("<|message|>")]
    shown([*drawn, *letters("cd", [1])], text)
    assert text.n_reasoning == len(drawn)


@given(TEXTS, st.lists(st.integers(0, 50), max_size=4), st.lists(st.sampled_from(["a", "b<", "🙂"]), max_size=2))
def test_without_marks_a_text_is_what_it_is_alone(text: str, cuts: list[int], stops: list[str]) -> None:
    stream = TextStream(stops)
    alone = "".join(stream.push(piece) for _, piece in letters(text, cuts)) + stream.flush()
    for use in ("hidden", "split", "shown"):
        assert content(shown(letters(text, cuts), ChannelText(stops, NO_CONTROL_TOKENS, use))) == alone
