"""One meaning of heads: an answer that is divided by its tokens and then read is the message of its whole text."""

import re
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.test_channels import CONTROLS, MARKS, letters
from tests.formats.test_parse import an_id, read
from tests.formats.writing import FORMATS, pieces_of
from worker.engine.channels import Channel, ChannelState, ChannelText
from worker.formats.read.parse import Delta, Message, Reader, Thought, message_of
from worker.wire.chat_format import ChatFormat

LAW = settings(max_examples=600, deadline=None)
HARMONY, MUSE = FORMATS["harmony"], FORMATS["muse"]
TOOLS: dict[str, object] = {"get": {"type": "object", "properties": {"n": {"type": "integer"}}}}
MUSE_CALL = (
    '<atem:function_calls>\n<atem:invoke name="get">\n<atem:parameter name="n">1</atem:parameter>\n</atem:invoke>\n'
)
MUSE_CALL += "</atem:function_calls>"
_NAMES = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>", "<|eom|>")
_MARK = re.compile("|".join(map(re.escape, _NAMES)))


def divided(form: ChatFormat, tools: Mapping[str, object], text: str, cuts: Sequence[int] = ()) -> Message:
    """The message that is served: each marker is a control token, which has no text."""
    stream = ChannelText((), MARKS, "split", ChannelState(Channel.ROLE), reads_calls=bool(tools))
    reader = Reader(form, tools, new_id=an_id, is_divided=True)
    deltas: list[Delta] = []
    tokens = []
    for part in re.split(f"({_MARK.pattern})", text):
        tokens += [(CONTROLS[part], b"")] if _MARK.fullmatch(part) else letters(part, cuts)
    told = [(stream.push(token, piece), stream.is_reasoning) for token, piece in tokens]
    told.append((stream.flush(), stream.is_reasoning))
    for said, is_reasoning in told:
        deltas += [Thought(said)] if is_reasoning else reader.push(said)
    return message_of(deltas + reader.finish())


def without_edges(message: Message) -> tuple[str, str, list[tuple[str, str]]]:
    """A message, white space of its thoughts aside."""
    return message.content, "".join(message.reasoning.split()), [(call.name, call.arguments) for call in message.calls]


WORDS = (
    *("analysis", "commentary", "final", "??", "assistant", "json", " to=functions.get", " to=python", " to=get", " "),
    *(" to=self", " to=user", " to=functions.other", "Hm. ", "Yes: ", '{"n": 1}', "<", "to", "\n", "to="),
)
MESSAGES = st.tuples(
    st.sampled_from(("<|start|>assistant", "<|start|>", "", "<|start|>assistant to=functions.get")),
    st.sampled_from(("<|channel|>", "")),
    st.sampled_from(
        ("analysis", "commentary", "final", "??", "", "commentary to=functions.get", "a long head of many")
    ),
    st.sampled_from(("<|message|>", " <|constrain|>json<|message|>", "")),
    st.sampled_from(
        ('{"n": 1}', "", " ", "print(1)", "Hm.", "the <|channel|> mark", "a <|message|> b", "<|constrain|>")
    ),
    st.sampled_from(("<|end|>", "<|call|>", "<|return|>", "")),
).map("".join)
ANSWERS = st.one_of(st.lists(MESSAGES, max_size=4), st.lists(st.sampled_from((*WORDS, *_NAMES)), max_size=9))


@pytest.mark.parametrize("tools", [TOOLS, {}], ids=["tools", "no tools"])
@pytest.mark.parametrize("form", [HARMONY, MUSE], ids=lambda form: form.name)
@LAW
@given(parts=ANSWERS, data=st.data())
def test_what_tokens_divide_is_the_message_of_the_whole_text(
    form: ChatFormat, tools: dict[str, object], parts: list[str], data: st.DataObject
) -> None:
    text = "".join(parts)
    whole = message_of(read(form, tools, data.draw(pieces_of(text))))
    served = divided(form, tools, text, data.draw(st.lists(st.integers(0, 20), max_size=3)))
    assert without_edges(served) == without_edges(whole), text
