"""Every kind of bad bytes is refused with what and where, before memory is taken for what they claim.

Reading costs little, whatever the file holds. Counted is what was read and kept, which no busy machine changes;
processor time has a stop far above.
"""

import json
import mmap
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gguf_files import (
    I8,
    KINDS,
    STRING,
    TINY_TENSORS,
    GgufFile,
    Raw,
    TensorRow,
    Typed,
    Value,
    entry,
    string,
    tiny_model,
    tiny_split,
)
from worker.errors import BadModelFile
from worker.models.facts.gguf import (
    MAX_ARRAY_STRINGS,
    MAX_HEADER_BYTES,
    MAX_KEPT_BYTES,
    MAX_KEPT_NUMBERS,
    MAX_KEYS,
    MAX_STRING_BYTES,
    MAX_TENSORS,
    Header,
    ReadAllowance,
    read_header,
)
from worker.models.facts.info import MAX_PARTS, read_info

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
    "2³² dimensions": (
        lambda: GgufFile(n_tensors=1).to_bytes() + string("t") + b"\xff" * 36,
        ("tensor 't'", f"{2**32 - 1} dimensions"),
    ),
}


BAD_ROWS = [json.loads(line) for line in Path(__file__).with_name("bad_files.jsonl").read_text().splitlines()]
"""The differences from the tiny model: numbers of its file, one more tensor, or metadata."""


@pytest.mark.parametrize("row", BAD_ROWS, ids=lambda row: row["is"])
def test_a_file_that_cannot_be_is_refused_with_what_and_where(row: dict[str, Any]) -> None:
    keys = {
        name: Typed(*next(iter(each.items()))) if isinstance(each, dict) else each
        for name, each in row.get("keys", {}).items()
    }
    more = [TensorRow(**row["tensor"])] if "tensor" in row else []
    line = refusal(replace(tiny_model(keys, tensors=[*TINY_TENSORS, *more]), **row.get("file", {})).to_bytes())
    assert not [phrase for phrase in row["says"] if phrase not in line], line


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


MIB = 2**20
GEMMA_TOKENS, GEMMA_MERGES = 262_144, 514_906
MAX_MEMORY_BYTES = 100 * MIB
STOP_CPU_S = 20.0
"""A second where the machine is idle; reading what the limits are there against took minutes."""


def sparse(path: Path, start: bytes, n_bytes: int) -> Path:
    """A file that begins so and is zeros from there on, which take no disk."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(n_bytes)
    return path


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data


def refused(path: Path, allowance: ReadAllowance) -> tuple[str, int]:
    """The line, and the most bytes that were allocated on the way to it."""
    with mapped(path) as data:
        tracemalloc.start()
        try:
            with pytest.raises(BadModelFile) as caught:
                read_header(data, path, allowance)
            return str(caught.value), tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("n_keys", [MAX_KEYS + 1, 93_000, 5_400_000])
def test_more_keys_than_any_model_has_are_refused_before_the_first_is_read(tmp_path: Path, n_keys: int) -> None:
    path = sparse(tmp_path / "m.gguf", replace(tiny_model(), n_keys=n_keys).header(), 24 + 100 * n_keys)
    allowance = ReadAllowance()
    line, n_allocated = refused(path, allowance)
    assert f"{n_keys} metadata keys at byte 16: at most {MAX_KEYS}" in line
    assert allowance == ReadAllowance()
    assert n_allocated < MIB


def repeated(key: bytes, n_times: int) -> bytes:
    """The key so often, each time with another number at the end of its name."""
    (length,) = struct.unpack_from("<Q", key)
    name, value = key[8 : 8 + length], key[8 + length :]
    return b"".join(string(f"{name.decode()}{number}") + value for number in range(n_times))


def key(name: str, value: Value) -> bytes:
    return GgufFile({name: value}, n_keys=0).to_bytes()[24:]


NUMBERS = key("n", Typed("f64", [0.5] * MAX_KEPT_NUMBERS))
LONG_TEXT = key("t", "x" * MAX_STRING_BYTES)
MUCH: dict[str, tuple[Callable[[], bytes], str]] = {
    "arrays of numbers": (lambda: repeated(NUMBERS, 500), f"hold more than {MAX_KEPT_BYTES} bytes"),
    "texts": (lambda: repeated(LONG_TEXT, 3), f"hold more than {MAX_KEPT_BYTES} bytes"),
    "names": (lambda: b"".join(key(f"{n}" + "k" * 999_999, 1) for n in range(3)), "hold more than"),
}


@pytest.mark.parametrize("kind", MUCH)
def test_much_of_anything_is_refused_where_its_limit_is_reached(tmp_path: Path, kind: str) -> None:
    make, why = MUCH[kind]
    keys = make()
    path = sparse(tmp_path / "m.gguf", GgufFile(n_keys=500).header() + keys, 24 + len(keys))
    line, n_allocated = refused(path, ReadAllowance())
    assert why in line
    assert n_allocated < 40 * MIB


def test_the_strings_of_all_arrays_count_together() -> None:
    data = GgufFile({f"x{number}": ["a"] * 3 for number in range(3)}).to_bytes()
    assert read_header(data, Path("m.gguf"), ReadAllowance(n_strings=9)).version == 3
    with pytest.raises(BadModelFile, match=f"'x2': the arrays up to it hold more than {MAX_ARRAY_STRINGS} strings"):
        read_header(data, Path("m.gguf"), ReadAllowance(n_strings=8))


def test_a_header_is_not_read_past_its_limit_however_long_its_strings(tmp_path: Path) -> None:
    """Strings as long as they may be, one in each MiB of a sparse file: their lengths lie on a page each."""
    path = tmp_path / "m.gguf"
    start = GgufFile({"x": Raw(9, struct.pack("<IQ", STRING, 1000))}).header()
    with path.open("wb") as file:
        file.write(start)
        for _ in range(1000):
            file.write(struct.pack("<Q", MAX_STRING_BYTES))
            file.seek(MAX_STRING_BYTES, 1)
        file.truncate(len(start) + 1000 * (8 + MAX_STRING_BYTES))
    line, _ = refused(path, ReadAllowance())
    assert "metadata key 'x'" in line
    assert f"those of a model may take {MAX_HEADER_BYTES} bytes" in line


@pytest.mark.long
def test_a_vocabulary_twice_as_large_as_the_largest_is_read(tmp_path: Path) -> None:
    n_tokens = 2 * GEMMA_TOKENS

    def strings(count: int, n_bytes: int) -> Raw:
        return Raw(9, struct.pack("<IQ", STRING, count) + (struct.pack("<Q", n_bytes) + b"x" * n_bytes) * count)

    model = tiny_model(
        {
            "tokenizer.ggml.tokens": [f"{token:08}" for token in range(n_tokens)],
            "tokenizer.ggml.scores": Raw(9, struct.pack("<IQ", 6, n_tokens) + bytes(4 * n_tokens)),
            "tokenizer.ggml.token_type": Raw(9, struct.pack("<IQ", 5, n_tokens) + bytes(4 * n_tokens)),
            "tokenizer.ggml.merges": strings(2 * GEMMA_MERGES, 17),
            "tokenizer.chat_template": "{{ messages }}" * 10_000,
        },
        tensors=[TensorRow("token_embd.weight", (32, n_tokens), 128 * n_tokens), *TINY_TENSORS[1:]],
    )
    assert read_info(model.write(tmp_path / "m.gguf")).vocab_size == n_tokens


def worst_model(path: Path) -> Path:
    """All that is limited, just within its limit."""
    n_strings, n_arrays = 2_900_000, 180
    keys = [string("strings"), struct.pack("<IIQ", 9, STRING, n_strings)]
    keys += [(struct.pack("<Q", 11) + b"x" * 11) * n_strings, repeated(NUMBERS, n_arrays)]
    metadata = dict(tiny_model().metadata)
    n_texts = MAX_KEYS - len(metadata) - 1 - n_arrays
    # One character beyond the first plane makes a text of four bytes each, and every bad byte is a character.
    text = struct.pack("<IQ", STRING, 10) + "😀".encode() + b"\xff" * 6
    keys += [string(f"t{number}") + text for number in range(n_texts)]
    rows = [TINY_TENSORS[0], *(TensorRow(f"blk.0.t{n}", (32, 1, 1, 1), 128) for n in range(MAX_TENSORS - 1))]
    file = GgufFile(metadata, rows)
    bare = len(GgufFile(metadata, n_keys=MAX_KEYS, n_tensors=len(rows)).header())
    whole = replace(file, n_keys=MAX_KEYS).header()
    start = whole[:bare] + b"".join(keys) + whole[bare:]
    assert len(start) < MAX_HEADER_BYTES
    return sparse(path, start, len(start) + 31 + sum(row.n_bytes for row in rows))


READ_ALONE = """
import json, sys, time
from pathlib import Path
from worker.models.facts.info import read_info
n_tensors = len(read_info(Path(sys.argv[1])).tensors)
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps([n_tensors, time.process_time(), int(status["VmHWM"].split()[0]) * 1024]))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="a process's peak is read from /proc")
def test_the_worst_file_that_is_accepted_takes_little_memory_and_time(tmp_path: Path) -> None:
    """A process of its own, all of whose memory counts, the interpreter's too."""
    path = worst_model(tmp_path / "m.gguf")
    command = [sys.executable, "-c", READ_ALONE, str(path)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=120)
    n_tensors, cpu_s, memory_bytes = json.loads(done.stdout)
    assert n_tensors == MAX_TENSORS
    assert memory_bytes < MAX_MEMORY_BYTES
    assert cpu_s < STOP_CPU_S


# ── parts ────────────────────────────────────────────────────────────────────────────────────────


def test_the_parts_of_a_model_share_its_limits(tmp_path: Path) -> None:
    paths = tiny_split(tmp_path)
    shared = ReadAllowance()
    for path in paths:
        with mapped(path) as data:
            assert isinstance(read_header(data, path, shared), Header)
    assert (shared.n_tensors, shared.n_strings) == (MAX_TENSORS - 3, MAX_ARRAY_STRINGS - 9)
    assert shared.n_keys == MAX_KEYS - len(tiny_model().metadata) - 3 * 3
    assert shared.n_header_bytes < MAX_HEADER_BYTES
    rows = [TensorRow(f"t{number}", (1,), 4) for number in range(MAX_TENSORS - 1)]
    split: dict[str, Value] = {"split.no": Typed("u16", 1), "split.count": Typed("u16", 3)}
    GgufFile(split, rows).write(paths[1])
    with pytest.raises(BadModelFile, match=r"tiny-00003-of-00003.*: 1 tensors at byte 8: at most 9999 are"):
        read_info(paths[0])


def test_more_parts_than_any_model_has_are_refused_before_one_is_looked_for(tmp_path: Path) -> None:
    count = MAX_PARTS + 1
    split: dict[str, Value | None] = {"split.no": Typed("u16", 0), "split.count": Typed("u16", count)}
    path = tiny_model(split).write(tmp_path / f"m-00001-of-{count:05d}.gguf")
    with pytest.raises(BadModelFile, match=rf"'split.count' is {count}, must be in 0..{MAX_PARTS}"):
        read_info(path)
