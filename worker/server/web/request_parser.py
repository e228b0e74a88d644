"""httptools' parser of requests. It ignores every offer to switch to another protocol, as RFC 9110 7.8 allows.

Clients make such offers in ordinary requests: the JDK's client sends `Upgrade: h2c` with each. httptools itself treats
the bytes after the head of such a request as the other protocol's, so the body is lost. This parser parses the head
again without its Upgrade lines, and then the body as usual.
"""

from typing import Protocol

from httptools import HttpParserUpgrade, HttpRequestParser

_CONNECT = b"CONNECT"
"""This method is itself an offer: the request has no other content."""


class Listener(Protocol):
    """uvicorn's protocol, which receives the parsed parts."""

    def on_message_begin(self) -> None: ...
    def on_url(self, url: bytes) -> None: ...
    def on_header(self, name: bytes, value: bytes) -> None: ...
    def on_headers_complete(self) -> None: ...
    def on_body(self, body: bytes) -> None: ...
    def on_message_complete(self) -> None: ...


class RequestParser:
    """The part of httptools' parser that uvicorn uses. If an offer is ignored, the listener gets the beginning and the
    headers twice, and their end once."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._parser = self._fresh()
        self._url = b""
        self._lines: list[bytes] = []
        """The headers for parsing again: all except the Upgrade lines."""

    def get_method(self) -> bytes:
        return self._parser.get_method()

    def get_http_version(self) -> str:
        return self._parser.get_http_version()

    def should_keep_alive(self) -> bool:
        return self._parser.should_keep_alive()

    def should_upgrade(self) -> bool:
        return False

    def feed_data(self, data: bytes) -> None:
        """Raises: HttpParserError."""
        rest = memoryview(data)
        while rest:
            try:
                self._parser.feed_data(rest)
            except HttpParserUpgrade as offer:
                if self.get_method() == _CONNECT:
                    return
                (n_parsed,) = offer.args
                rest = rest[n_parsed:]
                head = self._head_without_offer()
                self._parser = self._fresh()  # the old parser may be in the state of a closed connection
                self._parser.feed_data(head)
            else:
                return

    def _fresh(self) -> HttpRequestParser:
        parser = HttpRequestParser(self)
        # uvicorn sets it too: a request pipelined after one that ends the connection is not an error.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _head_without_offer(self) -> bytes:
        request_line = b"%b %b HTTP/%b" % (self.get_method(), self._url, self.get_http_version().encode())
        return b"\r\n".join([request_line, *self._lines, b"", b""])

    @property
    def _is_offer(self) -> bool:
        return self._parser.should_upgrade() and self.get_method() != _CONNECT

    # ── the parser's callbacks ───────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        self._url = b""
        self._lines = []
        self._listener.on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._listener.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailing spaces are not part of the value (RFC 9110, 5.5); the parser has removed leading ones.
        value = value.rstrip(b" \t")
        if name.lower() != b"upgrade":
            self._lines.append(b"%b: %b" % (name, value))
        self._listener.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._is_offer:
            self._listener.on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._listener.on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_offer:
            self._listener.on_message_complete()
