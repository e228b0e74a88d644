"""Bodies that are no JSON, or begin with a byte order mark: what is said of them."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.apis.core.errors import NotAnObject
from worker.apis.core.fields import read_object
from worker.apis.core.received import fault_of
from worker.apis.pool.execute import MalformedJson, parse_cancel

OTHER_ENCODINGS = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")
HALF = "half of a surrogate pair"
WIDE = "in UTF-16 or UTF-32; send it in UTF-8"

halves = st.integers(0xD800, 0xDFFF).map(lambda unit: f"\\u{unit:04x}")
"""Half of a surrogate pair, as an escape."""
whole = st.text(st.characters(codec="utf-8"), max_size=5).map(lambda text: json.dumps(text)[1:-1])
"""Texts without one, with escapes."""


def refusals_of(body: bytes) -> list[str]:
    """The errors of both readers of bodies."""
    said = []
    for read in (parse_cancel, read_object):
        with pytest.raises((MalformedJson, NotAnObject)) as raised:
            read(body)
        assert raised.value.http_status == 400
        said.append(str(raised.value))
    return said


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"))), st.booleans())
def test_a_byte_order_mark_is_skipped(members: dict[str, str], is_ascii: bool) -> None:
    members["job_id"] = "\ufeffj"
    body = json.dumps(members, ensure_ascii=is_ascii).encode("utf-8-sig")
    assert read_object(body) == read_object(bytearray(body)) == members
    assert parse_cancel(body).job_id == parse_cancel(bytearray(body)).job_id == "\ufeffj"


def test_one_mark_is_skipped_and_a_second_is_no_json() -> None:
    assert all("JSON" in said for said in refusals_of(b"\xef\xbb\xbf" * 2 + b"{}"))


@pytest.mark.parametrize("encoding", OTHER_ENCODINGS)
@pytest.mark.parametrize("value", [{"job_id": "j"}, {"é": "世界🌍"}, {}, [], "", 12])
def test_another_encoding_is_named(value: object, encoding: str) -> None:
    body = json.dumps(value, ensure_ascii=False).encode(encoding)
    assert all(WIDE in said for said in refusals_of(body))


@given(whole, halves, whole, st.sampled_from(['{"job_id":"%s"}', '{"%s":1}', '{"a":[{"b":"%s"}],"c":"\\n"}']))
def test_half_a_surrogate_pair_is_named_with_its_place(before: str, half: str, behind: str, body: str) -> None:
    """Wherever it stands: a pair of halves is whole only in order and side by side."""
    text = body % f"{before}x{half}y{behind}"
    place = text.encode().index(half.encode() + b"y")
    for said in refusals_of(text.encode()):
        assert HALF in said
        assert f"at byte {place};" in said
        assert half not in said


@given(whole, st.integers(0xD800, 0xDFFF), whole)
def test_half_a_surrogate_pair_in_bytes_is_named(before: str, unit: int, behind: str) -> None:
    """Some encoders write each half of a UTF-16 pair as three bytes (CESU-8)."""
    body = f'{{"job_id":"{before}{chr(unit)}{behind}"}}'.encode("utf-8", "surrogatepass")
    assert all(HALF in said for said in refusals_of(body))


@given(
    st.lists(
        whole | st.sampled_from(["\\\\ud800", "\\ud83d\\uDE00", "힐\ud7ff", "\\uD7FF", "\\\\\\\\udc00"]), min_size=1
    )
)
def test_whole_characters_are_never_called_half(texts: list[str]) -> None:
    body = f'{{"job_id":"{"".join(texts)}"'.encode()
    assert all(HALF not in said for said in refusals_of(body))
    assert parse_cancel(body + b"}").job_id == read_object(body + b"}")["job_id"]


@pytest.mark.parametrize(("body", "said"), [(b'{"job_id":"\xff"}', "not UTF-8"), (b'{"job_id":1', "truncated")])
def test_other_faults_are_reported_as_they_are(body: bytes, said: str) -> None:
    assert all(said in found for found in refusals_of(body))


@pytest.mark.parametrize("unit", [b"\\", b"\\\\", b"\\ud83d\\ude00", b'\\"', b"\xed\x9f\xbf", b"x", b"\\ud8"])
def test_the_search_takes_milliseconds_for_the_largest_body(unit: bytes) -> None:
    """A search that went back would take minutes: the bound is a thousand times what it takes."""
    body = b'{"a":"' + unit * (2**21 // len(unit))
    began_s = time.process_time()
    fault_of(body, ValueError("no"))
    assert time.process_time() - began_s < 5
