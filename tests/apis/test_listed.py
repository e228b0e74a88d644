"""The tokens that a message lists are those of its text, for any tokens, stops and ends."""

import codecs
import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from tests.apis.asking import ASKED, HEADING, TERMS, body, finish, objects, start
from tests.engine.text_reference import finished_text
from worker.apis.chat.request import read_chat
from worker.apis.core.answers import whole
from worker.apis.core.events import Piece
from worker.engine.channels import TextStream
from worker.wire.jobs import Logprob, StopReason, TokenId, TopToken

UNICODE = "a\u00e9\u20ac\U0001f388"
valid = st.text(alphabet=UNICODE + "bc", min_size=1, max_size=8).map(str.encode)
any_bytes = st.binary(max_size=4) | st.sampled_from(
    [b"\xed", b"\xa0", b"\xed\xa0\x80", b"\xe2\x82", b"\xf0\x9f", b"\xff"]
)
stops = st.lists(st.text(alphabet=UNICODE + "bc\ufffd", min_size=1, max_size=3), max_size=3)


@st.composite
def cut_anyhow(draw: st.DrawFn) -> list[bytes]:
    """A text's bytes in tokens that need not be whole characters; some tokens have no text."""
    data = draw(st.lists(valid | any_bytes, max_size=8).map(b"".join))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=10)))
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def entry(number: int, piece: bytes) -> Logprob:
    text = piece.decode(errors="replace")
    raw = None if text.encode() == piece else piece
    return Logprob(TopToken(text, TokenId(number), -0.5, raw), ())


class Told:
    """The log-probabilities and text of one answer with these tokens, as the front reports them
    (server/front/job.py)."""

    def __init__(self, pieces: list[bytes], stops: list[str], end: StopReason, **fields: Any) -> None:
        request = read_chat(body(ASKED | {"logprobs": True} | fields), TERMS)
        (choice,) = request.answers(HEADING)
        stream = TextStream(stops)
        untold: list[Logprob] = []
        self.stream_bytes = start(choice)
        self.content, self.reason = "", end
        for number, piece in enumerate(pieces):
            untold.append(entry(number, piece))
            is_last = number == len(pieces) - 1
            text = "" if is_last and end == "EOS" else stream.push(piece)
            if stream.matched is not None:
                self.reason = "STOP_SEQUENCE"
            elif is_last:
                text += stream.flush()
            if text:
                self.content += text
                self.stream_bytes += choice.token(Piece(text, number, untold, number + 1))
                untold = []
            if stream.matched is not None:
                break
        self.stream_bytes += finish(choice, self.reason, len(pieces), untold)
        self._choice = choice

    def collected(self) -> tuple[str, list[bytes]]:
        _, answer = whole(HEADING, [self._choice], 1)
        (found,) = json.loads(answer)["choices"]
        return found["message"]["content"], [bytes(each["bytes"]) for each in found["logprobs"]["content"]]

    def chunks(self) -> list[tuple[str, list[bytes]]]:
        choices = [each["choices"][0] for each in objects(self.stream_bytes)]
        listed = [(each["logprobs"] or {"content": []})["content"] for each in choices]
        return [
            (each["delta"].get("content", ""), [bytes(token["bytes"]) for token in tokens])
            for each, tokens in zip(choices, listed, strict=True)
        ]


ends = st.sampled_from(["EOS", "MAX_TOKENS"])


@given(cut_anyhow(), stops, ends)
@example([b"a", b"xb", b"cd"], ["bc"], "EOS")
@example([b"\xf0\x9f", b"\x8e\x88"], ["\U0001f388"], "MAX_TOKENS")
@example([b"\xe2", b"ab"], ["ab"], "MAX_TOKENS")
def test_the_bytes_of_the_listed_tokens_are_the_text(pieces: list[bytes], stops: list[str], end: StopReason) -> None:
    told = Told(pieces, stops, end)
    content, listed = told.collected()
    assert content == told.content
    data = b"".join(listed)
    if told.reason == "MAX_TOKENS":
        assert content == finished_text(data)
        assert listed == [piece for piece in pieces if piece]
    else:
        assert content == data.decode(errors="replace")


@given(cut_anyhow(), stops, ends)
def test_a_stream_lists_the_same_tokens_and_none_before_its_text(
    pieces: list[bytes], stops: list[str], end: StopReason
) -> None:
    _, wanted = Told(pieces, stops, end).collected()
    chunks = Told(pieces, stops, end, stream=True).chunks()
    assert [each for _, listed in chunks for each in listed] == wanted
    decoder, text, told = codecs.getincrementaldecoder("utf-8")("replace"), "", ""
    for more, listed in chunks[:-1]:
        text, told = text + more, told + decoder.decode(b"".join(listed))
        assert text.startswith(told)


def test_the_shown_part_of_a_token_that_a_stop_cuts_is_listed() -> None:
    told = Told([b"one ", b"two###", b"three"], ["###"], "EOS")
    assert told.collected() == ("one two", [b"one ", b"two"])
    streamed = Told([b"one ", b"two#", b"##x"], ["###"], "MAX_TOKENS", stream=True).chunks()
    assert streamed == [("", []), ("one ", [b"one "]), ("two", []), ("", [b"two"])]


def test_a_stop_token_with_a_text_is_not_listed() -> None:
    told = Told([b"yes", b"<end>"], [], "EOS")
    assert told.collected() == ("yes", [b"yes"])
