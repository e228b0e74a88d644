"""Every kind of bad bytes is refused with what and where, before memory is taken for what they claim."""

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gguf_files import (
    I8,
    KINDS,
    Q4_1,
    TINY_TENSORS,
    GgufFile,
    Raw,
    TensorRow,
    Typed,
    Value,
    entry,
    string,
    tiny_model,
)
from worker.errors import BadModelFile
from worker.models.facts.gguf import MAX_ARRAY_STRINGS, MAX_STRING_BYTES, Header, read_header

PATH = Path("m.gguf")


def refusal(data: bytes) -> str:
    """The line these bytes are refused with, less the path it begins with."""
    outcome = header_or_line(data)
    assert isinstance(outcome, str)
    assert "\n" not in outcome
    assert outcome.startswith("m.gguf: ")
    return outcome.removeprefix("m.gguf: ")


def header_or_line(data: bytes) -> Header | str:
    try:
        return read_header(data, PATH)
    except BadModelFile as error:
        return str(error)


def with_tensor(row: TensorRow) -> GgufFile:
    return tiny_model(tensors=[*TINY_TENSORS, row])


def test_keys_of_every_type_are_walked() -> None:
    changes: dict[str, Value | None] = {f"x.{kind}": Typed(kind, 1) for kind in KINDS}
    changes |= {f"y.{kind}": Typed(kind, [1] * n) for kind, n in zip(KINDS, range(2000, 2011), strict=True)}
    changes |= {"z.strings": ["", "a", "é"], "z.none": Typed("f32", []), "z.last": "seen"}
    metadata = read_header(tiny_model(changes).to_bytes(), PATH).metadata
    assert [metadata.number(f"x.{kind}", 1, kind=kind) for kind in KINDS] == [1] * len(KINDS)
    assert (metadata.n_strings("z.strings"), metadata.text("z.last")) == (3, "seen")


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_the_alignment_is_the_file_s_own(alignment: int) -> None:
    model = replace(tiny_model({"general.alignment": alignment}), alignment=alignment)
    assert len(read_header(model.to_bytes(), PATH).tensors) == 3


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(TensorRow("last", (1,), 1, I8), id="the last byte of the file"),
        pytest.param(TensorRow("last", (1, 1, 1, 1), 1, I8), id="four dimensions"),
    ],
)
def test_a_tensor_may_end_where_the_file_ends(row: TensorRow) -> None:
    data = with_tensor(row).to_bytes()
    assert read_header(data, PATH).tensors[-1].n_bytes == 1
    assert "tensor 'last'" in refusal(data[:-1])


def test_a_tensor_of_no_bytes_is_accepted_inside_the_file_only() -> None:
    empty, last = TensorRow("empty", (0,), 0), TensorRow("last", (1,), 1, I8)
    inside = tiny_model(tensors=[*TINY_TENSORS, empty, last]).to_bytes()
    assert [tensor.n_bytes for tensor in read_header(inside, PATH).tensors[-2:]] == [0, 1]
    assert "tensor 'empty'" in refusal(with_tensor(empty).to_bytes())


HUGE = 2**64 - 32
BAD_FILES: dict[str, tuple[Callable[[], bytes], tuple[str, ...]]] = {
    "empty": (lambda: b"", ("truncated", "byte 0")),
    "zeros": (lambda: bytes(64), ("not a GGUF file", r"b'\x00\x00\x00\x00'")),
    "another format": (lambda: b"\x80\x02}q\x00." * 9, ("not a GGUF file",)),
    "three bytes": (lambda: b"GGU", ("the first 24 bytes", "truncated", "byte 3")),
    "no counts": (lambda: b"GGUF\x03\0\0\0", ("the first 24 bytes", "truncated", "byte 8")),
    "version 1": (replace(tiny_model(), version=1).to_bytes, ("version 1 at byte 4",)),
    "version 999": (replace(tiny_model(), version=999).to_bytes, ("version 999 at byte 4", "2 and 3")),
    "version 0": (replace(tiny_model(), version=0).to_bytes, ("version 0",)),
    "big-endian": (replace(tiny_model(), version=3 << 24).to_bytes, ("big-endian",)),
    "10,000 tensors": (replace(tiny_model(), n_tensors=10_000).to_bytes, ("10000 tensors at byte 8",)),
    "2⁶⁴ tensors": (replace(tiny_model(), n_tensors=2**64 - 1).to_bytes, (f"{2**64 - 1} tensors",)),
    "9,999 tensors in a small file": (replace(tiny_model(), n_tensors=9999).to_bytes, ("9999 tensors do not fit",)),
    "2⁶⁴ keys": (replace(tiny_model(), n_keys=2**64 - 1).to_bytes, (f"{2**64 - 1} metadata keys", "do not fit")),
    "one key more than there is": (
        lambda: GgufFile({"a": 1}, n_keys=2).to_bytes() + bytes(14),
        ("metadata key 2 of 2", "empty"),
    ),
    "a key twice": (
        lambda: GgufFile({"a": 1}, n_keys=2).to_bytes() + string("a") + entry(2),
        ("metadata key 'a'", "twice"),
    ),
    "a key not in UTF-8": (
        lambda: GgufFile(n_keys=1).to_bytes() + struct.pack("<Q", 2) + b"\xff\xfe" + entry(1),
        ("metadata key 1 of 1", "byte 24", "UTF-8"),
    ),
    "a string past the end": (
        tiny_model({"x": Raw(8, struct.pack("<Q", 1 << 20))}).to_bytes,
        ("metadata key 'x'", "truncated"),
    ),
    "a string too long": (
        tiny_model({"x": Raw(8, struct.pack("<Q", MAX_STRING_BYTES + 1))}).to_bytes,
        ("metadata key 'x'", f"claims {MAX_STRING_BYTES + 1} bytes", f"at most {MAX_STRING_BYTES}"),
    ),
    "a string of 2⁶⁴ in an array": (
        tiny_model({"x": Raw(9, struct.pack("<IQQ", 8, 1, 2**64 - 1))}).to_bytes,
        ("metadata key 'x'", f"claims {2**64 - 1} bytes"),
    ),
    "strings past the end": (
        lambda: GgufFile({"x": Raw(9, struct.pack("<IQ4Q", 8, 4, 8, 0, 9, 0))}).to_bytes(),
        ("metadata key 'x'", "truncated"),
    ),
    "an array of 2⁶⁴ numbers": (
        tiny_model({"x": Raw(9, struct.pack("<IQ", 4, 2**64 - 1))}).to_bytes,
        ("metadata key 'x'", f"{2**64 - 1} elements", "do not fit"),
    ),
    "an array of 2⁶⁴ strings": (
        tiny_model({"x": Raw(9, struct.pack("<IQ", 8, 2**64 - 1))}).to_bytes,
        ("metadata key 'x'", f"{2**64 - 1} elements", "do not fit"),
    ),
    "arrays in arrays": (
        tiny_model({"x": Raw(9, struct.pack("<IQ", 9, 1) * 50_000)}).to_bytes,
        ("metadata key 'x'", "an array of arrays"),
    ),
    "an unknown value type": (tiny_model({"x": Raw(13, bytes(8))}).to_bytes, ("metadata key 'x'", "value type 13")),
    "an unknown array type": (
        tiny_model({"x": Raw(9, struct.pack("<IQ", 77, 0))}).to_bytes,
        ("metadata key 'x'", "value type 77"),
    ),
    "alignment 0": (tiny_model({"general.alignment": 0}).to_bytes, ("'general.alignment'", "0 is not a power of two")),
    "alignment 48": (tiny_model({"general.alignment": 48}).to_bytes, ("48 is not a power of two",)),
    "alignment 2³¹": (tiny_model({"general.alignment": 1 << 31}).to_bytes, (f"{1 << 31}", "8..65536")),
    "alignment of another type": (
        tiny_model({"general.alignment": Typed("u64", 32)}).to_bytes,
        ("'general.alignment'", "type u64, must be u32"),
    ),
    "a tensor twice": (with_tensor(TINY_TENSORS[0]).to_bytes, ("tensor 'token_embd.weight'", "twice")),
    "a tensor without a name": (with_tensor(TensorRow("", (1,), 4)).to_bytes, ("tensor 4 of 4", "empty")),
    "a tensor's name too long": (with_tensor(TensorRow("x" * 64, (1,), 4)).to_bytes, ("tensor 'xxx", "63 bytes")),
    "no dimensions": (with_tensor(TensorRow("t", (), 4)).to_bytes, ("tensor 't'", "0 dimensions")),
    "five dimensions": (with_tensor(TensorRow("t", (1,) * 5, 4)).to_bytes, ("tensor 't'", "5 dimensions")),
    "2³² dimensions": (
        lambda: GgufFile(n_tensors=1).to_bytes() + string("t") + b"\xff" * 36,
        ("tensor 't'", f"{2**32 - 1} dimensions"),
    ),
    "an overflow of the dimensions": (
        with_tensor(TensorRow("t", (1 << 32, 1 << 32), 4)).to_bytes,
        ("tensor 't'", "overflow"),
    ),
    "an overflow before a zero": (
        with_tensor(TensorRow("t", (1 << 32, 1 << 32, 0), 4)).to_bytes,
        ("tensor 't'", "overflow"),
    ),
    "a negative dimension": (with_tensor(TensorRow("t", (0, HUGE), 4)).to_bytes, ("tensor 't'", "overflow")),
    "an unknown tensor type": (with_tensor(TensorRow("t", (1,), 4, 43)).to_bytes, ("tensor 't'", "type 43")),
    "a withdrawn tensor type": (with_tensor(TensorRow("t", (32,), 4, 4)).to_bytes, ("tensor 't'", "type 4 ")),
    "half a block": (
        with_tensor(TensorRow("t", (48, 2), 60, Q4_1)).to_bytes,
        ("tensor 't'", "rows of 48", "Q4_1 needs a multiple of 32"),
    ),
    "an offset not aligned": (
        with_tensor(TensorRow("t", (1,), 64, offset=1281)).to_bytes,
        ("tensor 't'", "offset 1281", "alignment 32"),
    ),
    "an offset past the end": (
        with_tensor(TensorRow("t", (1,), 4, offset=1 << 40)).to_bytes,
        ("tensor 't'", "ends at byte"),
    ),
    "offset and size wrap": (
        with_tensor(TensorRow("t", (64,), 4, offset=HUGE)).to_bytes,
        ("tensor 't'", "ends at byte"),
    ),
    "an end past the end": (with_tensor(TensorRow("t", (1 << 40,), 4)).to_bytes, ("tensor 't'", "ends at byte")),
    "tensors that overlap": (
        with_tensor(TensorRow("t", (1,), 4, offset=0)).to_bytes,
        ("tensor 't'", "offset is 0", "ends at 1280"),
    ),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_bytes_are_refused_with_what_and_where(kind: str) -> None:
    make, phrases = BAD_FILES[kind]
    line = refusal(make())
    assert not [phrase for phrase in phrases if phrase not in line], line


def test_a_tensor_that_begins_at_the_end_of_the_file_is_refused() -> None:
    data = with_tensor(TensorRow("t", (8,), 32)).to_bytes()
    assert f"tensor 't': its data is at bytes {len(data) - 32}..{len(data)}" in refusal(data[:-32])


def test_more_strings_than_any_vocabulary_are_refused_before_they_are_walked() -> None:
    n_strings = MAX_ARRAY_STRINGS + 1
    start = GgufFile({"x": Raw(9, struct.pack("<IQ", 8, n_strings))}).to_bytes()
    assert f"more than {MAX_ARRAY_STRINGS} strings" in refusal(start + bytes(8 * n_strings))


@settings(max_examples=300)
@given(data=st.binary(max_size=200))
def test_any_bytes_after_the_magic_give_a_header_or_one_clear_line(data: bytes) -> None:
    for start in (b"", b"GGUF\x03\0\0\0", struct.pack("<4sIQQ", b"GGUF", 3, 1, 1)):
        outcome = header_or_line(start + data)
        assert isinstance(outcome, Header) or "\n" not in outcome
