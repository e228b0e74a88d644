"""Every frame survives the way through worker/wire/frames.py, and no decoder takes the other direction's."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from worker.wire.frames import FrameBuffer, encode_frame, inbound_decoder, outbound_decoder
from worker.wire.messages import Inbound, Outbound

LAW = settings(max_examples=60)


def values_of(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Values of a type as msgspec sees it. Raises: NotImplementedError for one that no frame has had yet."""
    match kind:
        case inspect.StructType(cls=cls, fields=fields) | inspect.DataclassType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: values_of(field.type) for field in fields})
        case inspect.UnionType(types=types):
            return st.one_of(*map(values_of, types))
        case inspect.VarTupleType(item_type=item):
            return st.lists(values_of(item), max_size=4).map(tuple)
        case inspect.ListType(item_type=item):
            return st.lists(values_of(item), max_size=4)
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(values_of, items))
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.IntType(ge=least, le=most):
            return st.integers(-(2**63) if least is None else least, 2**64 - 1 if most is None else most)
        case inspect.FloatType():
            return st.floats(allow_nan=False)
        case inspect.StrType():
            return st.text(max_size=20)
        case inspect.BytesType():
            return st.binary(max_size=16)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case _:
            raise NotImplementedError(kind)


INBOUND: dict[type, st.SearchStrategy[Inbound]] = {
    kind: values_of(inspect.type_info(kind)) for kind in get_args(Inbound)
}
OUTBOUND: dict[type, st.SearchStrategy[Outbound]] = {
    kind: values_of(inspect.type_info(kind)) for kind in get_args(Outbound)
}


def body_of(message: Inbound | Outbound) -> bytes:
    ((_, body),) = FrameBuffer().feed(encode_frame(1, message))
    return body


@LAW
@given(message=st.sampled_from(list(INBOUND)).flatmap(INBOUND.__getitem__))
def test_what_the_front_sends_is_what_the_engine_reads(message: Inbound) -> None:
    read = inbound_decoder.decode(body_of(message))
    assert read == message
    assert type(read) is type(message)


@LAW
@given(message=st.sampled_from(list(OUTBOUND)).flatmap(OUTBOUND.__getitem__))
def test_what_the_engine_sends_is_what_the_front_reads(message: Outbound) -> None:
    read = outbound_decoder.decode(body_of(message))
    assert read == message
    assert type(read) is type(message)


@pytest.mark.parametrize("kind", INBOUND)
def test_the_front_does_not_read_its_own_frames(kind: type) -> None:
    @settings(LAW, max_examples=5)
    @given(message=INBOUND[kind])
    def is_refused(message: Inbound) -> None:
        with pytest.raises(msgspec.ValidationError):
            outbound_decoder.decode(body_of(message))

    is_refused()


@pytest.mark.parametrize("kind", OUTBOUND)
def test_the_engine_does_not_read_its_own_frames(kind: type) -> None:
    @settings(LAW, max_examples=5)
    @given(message=OUTBOUND[kind])
    def is_refused(message: Outbound) -> None:
        with pytest.raises(msgspec.ValidationError):
            inbound_decoder.decode(body_of(message))

    is_refused()


@LAW
@given(message=st.sampled_from(list(INBOUND)).flatmap(INBOUND.__getitem__))
def test_frames_are_values_equal_ones_are_one_key(message: Inbound) -> None:
    again = inbound_decoder.decode(body_of(message))
    assert len({message, again}) == 1
