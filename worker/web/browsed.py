"""What browsers are given: files of the wheel, with the headers that keep a browser from making more of them."""

from functools import cache
from importlib.resources import files

from litestar import Response


def browsed(body: bytes, media_type: str, headers: dict[str, str]) -> Response[bytes]:
    guards = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
    return Response(body, media_type=media_type, headers=guards | headers)


@cache
def page_file(name: str) -> bytes:
    """A file of `page/`, by its path there."""
    return files(__package__).joinpath("page", name).read_bytes()
