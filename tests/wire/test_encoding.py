"""Values as bytes, or an error if memory is short; and frames over a byte stream that may cut anywhere."""

import os
import re
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.apis.pool.vectors import conversation
from tests.faults.shim import Switch, built
from tests.imports import sources
from worker.config.engine_settings import inbound_decoder
from worker.config.settings import options
from worker.wire.encoding import MAX_BODY_BYTES, FrameBuffer, encode_frame, encode_json, encode_messagepack
from worker.wire.jobs import Cancel, JobKey, SamplingParams, Submit, TokenId
from worker.wire.messages import QuestionKey, Tokenized

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_the_bytes_are_msgspecs(value: object) -> None:
    assert encode_json(value) == msgspec.json.encode(value)
    assert encode_messagepack(value) == msgspec.msgpack.encode(value)


SHORT_OF_MEMORY = """
import os, sys
from worker.wire import encoding
value = ["x" * 1000] * 1000
open(os.environ["FAULTS_WHILE"], "w").close()
try:
    getattr(encoding, sys.argv[1])(value)
except MemoryError:
    print("MemoryError")
"""


@pytest.mark.process
@pytest.mark.parametrize("name", ["encode_json", "encode_messagepack"])
def test_a_buffer_that_cannot_grow_is_an_error_and_ends_no_process(name: str, tmp_path: Path) -> None:
    """One allocation fails, of at least 64 KiB."""
    switch = Switch(built(tmp_path), tmp_path / "on", "alloc=65536")
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY, name],
        env={**os.environ, **switch.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "MemoryError\n"), done.stderr


def test_no_part_of_the_worker_encodes_otherwise() -> None:
    """Commands that print may: they serve nobody."""
    own = {"worker.wire.encoding", "worker.commands.tables"}
    others = re.compile(r"msgspec\.(json|msgpack)\.(encode|Encoder)\(")
    names = [module.name for module in sources() if module.name.startswith("worker.") and others.search(module.text)]
    assert set(names) == own


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


def test_a_body_of_the_greatest_length_is_taken_and_a_longer_one_refused_before_any_of_it_is_there() -> None:
    longest = bytes(MAX_BODY_BYTES)
    (body,) = FrameBuffer().feed(struct.pack("<I", MAX_BODY_BYTES) + longest)
    assert body == longest
    with pytest.raises(ValueError, match=f"claims {MAX_BODY_BYTES + 1} bytes; at most {MAX_BODY_BYTES}"):
        list(FrameBuffer().feed(struct.pack("<I", MAX_BODY_BYTES + 1)))


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
