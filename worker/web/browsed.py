"""The files for browsers, with headers that stop a browser from guessing types or sending referrers."""

from functools import cache
from importlib.resources import files

from litestar import Response

BROWSED_PATHS = frozenset({"/docs", "/docs/", "/docs/page.js", "/docs/redoc.standalone.js"})
"""Browsers ask for a password but never for a bearer token, so these pages accept the token as a password. No other
path does, because a browser also sends a password with requests that another site's page starts.
"""


def browsed(body: bytes, media_type: str, headers: dict[str, str]) -> Response[bytes]:
    guards = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
    return Response(body, media_type=media_type, headers=guards | headers)


@cache
def page_file(name: str) -> bytes:
    """The file with this path in `page/`."""
    return files(__package__).joinpath("page", name).read_bytes()
