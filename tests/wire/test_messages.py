"""Every frame survives the way through worker/wire/encoding.py, and no decoder takes the other direction's."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from worker.config.engine_settings import Configure, inbound_decoder
from worker.wire.encoding import FrameBuffer, encode_frame
from worker.wire.jobs import Submit
from worker.wire.messages import Inbound, Outbound, outbound_decoder

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
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(values_of(key), values_of(value), max_size=4)
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
        case inspect.Metadata(type=bare):
            return values_of(bare)
        case inspect.CustomType(cls=cls) if cls is Path:
            return st.sampled_from([Path("/models"), Path("a.jinja")])
        case inspect.NoneType():
            return st.none()
        case _:
            raise NotImplementedError(kind)


DIRECTIONS: dict[str, tuple[tuple[type, ...], msgspec.msgpack.Decoder[Any], msgspec.msgpack.Decoder[Any]]] = {
    "in": ((Configure, *get_args(Inbound)), inbound_decoder, outbound_decoder),
    "out": (get_args(Outbound), outbound_decoder, inbound_decoder),
}
"""The frames of each direction, their own decoder, and the other direction's."""


def body_of(message: Inbound | Outbound | Configure) -> bytes:
    (body,) = FrameBuffer().feed(encode_frame(message))
    return body


def one_of(kinds: Iterable[type]) -> st.SearchStrategy[Any]:
    return st.one_of(*(values_of(inspect.type_info(kind)) for kind in kinds))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_one_side_sends_is_what_the_other_reads(direction: str) -> None:
    kinds, decoder, _ = DIRECTIONS[direction]

    @LAW
    @given(message=one_of(kinds))
    def is_read(message: Any) -> None:
        read = decoder.decode(body_of(message))
        assert read == message
        assert type(read) is type(message)
        if isinstance(message, get_args(Inbound)) and not isinstance(message, Submit):
            assert len({message, read}) == 1, "frames are values"

    is_read()


@pytest.mark.parametrize(("direction", "kind"), [(name, kind) for name in DIRECTIONS for kind in DIRECTIONS[name][0]])
def test_no_side_reads_its_own_frames(direction: str, kind: type) -> None:
    _, _, other = DIRECTIONS[direction]

    @settings(LAW, max_examples=5)
    @given(message=one_of([kind]))
    def is_refused(message: Any) -> None:
        with pytest.raises(msgspec.ValidationError):
            other.decode(body_of(message))

    is_refused()
