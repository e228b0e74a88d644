"""Server-sent events out of bytes, however these were cut. Knows nothing of what an event means. Pure."""

from collections.abc import Iterable, Iterator


class Frames:
    """The frames of one stream, out of its bytes as they come."""

    def __init__(self) -> None:
        self.rest = b""
        """The beginning of a frame that is not whole."""

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are whole now, comments among them."""
        *frames, self.rest = (self.rest + data).split(b"\n\n")
        return frames


def frames_in(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Each frame of a stream, as soon as it is whole."""
    frames = Frames()
    return (frame for chunk in chunks for frame in frames.feed(chunk))


def is_comment(frame: bytes) -> bool:
    return frame.startswith(b":")


def data_of(frame: bytes) -> bytes:
    """The data of an event, without its name; empty for a comment."""
    lines = frame.split(b"\n")
    return b"\n".join(line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: "))


def data_in(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The data of each event of a stream, as soon as it is whole."""
    return filter(None, map(data_of, frames_in(chunks)))
