"""Frames over a byte stream that may cut anywhere."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.apis.pool.vectors import conversation
from worker.config.engine_settings import inbound_decoder
from worker.config.settings import options
from worker.wire.encoding import MAX_BODY_BYTES, FrameBuffer, encode_frame
from worker.wire.jobs import Cancel, JobKey, SamplingParams, Submit, TokenId
from worker.wire.messages import QuestionKey, Tokenized

LAW = settings(max_examples=200)

MESSAGES = st.one_of(
    st.integers(0, 2**40).map(lambda job: Cancel(job=JobKey(job))),
    st.text(max_size=200).map(
        lambda prompt: Submit(job=JobKey(1), prompt=prompt, sampling=SamplingParams(seed=2**64 - 1))
    ),
)


def portions(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@pytest.mark.long
@LAW
@given(
    sent=st.lists(MESSAGES, max_size=6),
    cuts=st.lists(st.integers(0, 2000), max_size=12),
)
def test_any_cutting_of_the_bytes_gives_the_same_frames_in_order(sent: list[Cancel | Submit], cuts: list[int]) -> None:
    buffer = FrameBuffer()
    data = b"".join(map(encode_frame, sent))
    read = [frame for portion in portions(data, cuts) for frame in buffer.feed(portion)]
    assert list(map(inbound_decoder.decode, read)) == sent


@LAW
@given(message=MESSAGES)
def test_a_frame_is_out_with_its_last_byte_and_no_earlier(message: Cancel | Submit) -> None:
    buffer = FrameBuffer()
    data = encode_frame(message)
    assert data[:4] == struct.pack("<I", len(data) - 4)
    assert all(not list(buffer.feed(data[i : i + 1])) for i in range(len(data) - 1))
    (body,) = buffer.feed(data[-1:])
    assert inbound_decoder.decode(body) == message


def test_a_body_of_the_greatest_length_is_taken_and_one_byte_more_is_impossible() -> None:
    longest = bytes(MAX_BODY_BYTES)
    (body,) = FrameBuffer().feed(struct.pack("<I", MAX_BODY_BYTES) + longest)
    assert body == longest
    with pytest.raises(ValueError, match=f"claims {MAX_BODY_BYTES + 1} bytes; at most {MAX_BODY_BYTES}"):
        list(FrameBuffer().feed(struct.pack("<I", MAX_BODY_BYTES + 1)))


def test_an_impossible_length_is_refused_before_any_of_its_body_is_there() -> None:
    buffer = FrameBuffer()
    whole = encode_frame(Cancel(job=JobKey(1)))
    frames = buffer.feed(whole + b"\xff" * 8)
    assert inbound_decoder.decode(next(frames)) == Cancel(job=JobKey(1))
    with pytest.raises(ValueError, match="claims 4294967295 bytes"):
        next(frames)


def test_the_longest_prompt_a_request_may_have_and_the_longest_answer_about_it_fit_a_frame() -> None:
    (most,) = [option.type.max for option in options() if option.name == "max_prompt_chars"]  # type: ignore[attr-defined]  # IntRange
    told = [{"role": "user", "content": "\x01" * int(most)}]
    text, other = "\U0001f600" * int(most), {"x": "\U0001f600" * (int(most) - 10)}
    for prompt in (text, conversation(told, tools=[other], max_chars=int(most))):
        submit = Submit(job=JobKey(1), prompt=prompt, sampling=SamplingParams(seed=0))
        (body,) = FrameBuffer().feed(encode_frame(submit))
        assert inbound_decoder.decode(body) == submit
    tokens = (TokenId(2**31 - 1),) * (4 * int(most))
    assert list(FrameBuffer().feed(encode_frame(Tokenized(question=QuestionKey(1), tokens=tokens, text=text))))
