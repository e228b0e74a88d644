"""A reader of the events of `/v1/messages` that accepts no event out of its place, and sums up what they say."""

import json
from collections.abc import Mapping
from typing import Any

Event = Mapping[str, Any]

DELTAS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
    "input_json_delta": "tool_use",
}
_MEMBERS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def events_of(stream: bytes) -> list[Event]:
    """The events of a stream whose frames have a line with the type and a line with the event."""
    frames = stream.decode().split("\n\n")
    assert frames.pop() == ""
    found = []
    for frame in frames:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


class Follower:
    """Follows a stream. `take` raises AssertionError for an event that may not come now."""

    def __init__(self) -> None:
        self.message: dict[str, Any] | None = None
        """The sum of the events."""
        self.error: Event | None = None
        self.is_over = False
        self.partial: dict[int, str] = {}
        """The JSON text of each call's input, by the block's index."""
        self._is_open = self._has_ended = False

    def take(self, event: Event) -> None:
        assert not self.is_over, event
        match event["type"]:
            case "ping":
                pass
            case "error":
                self.error, self.is_over = event["error"], True
            case "message_start":
                assert self.message is None
                self.message = dict(event["message"])
                assert self.message["content"] == []
                assert self.message["stop_reason"] is None
            case kind:
                assert self.message is not None, kind
                getattr(self, f"_{kind}")(event)

    @property
    def blocks(self) -> list[dict[str, Any]]:
        assert self.message is not None
        blocks: list[dict[str, Any]] = self.message["content"]
        return blocks

    def _content_block_start(self, event: Event) -> None:
        assert not self._is_open
        assert not self._has_ended
        assert event["index"] == len(self.blocks)
        self.blocks.append(dict(event["content_block"]))
        self._is_open = True

    def _content_block_delta(self, event: Event) -> None:
        assert self._is_open
        assert event["index"] == len(self.blocks) - 1
        block, delta = self.blocks[-1], event["delta"]
        kind = delta["type"]
        assert block["type"] == DELTAS[kind]
        assert not block.get("signature"), "the signature comes last"
        if kind == "input_json_delta":
            self.partial[event["index"]] = self.partial.get(event["index"], "") + delta["partial_json"]
        else:
            block[_MEMBERS[kind]] += delta[_MEMBERS[kind]]

    def _content_block_stop(self, event: Event) -> None:
        assert self._is_open
        assert event["index"] == len(self.blocks) - 1
        assert self.blocks[-1].get("signature") != ""
        self._is_open = False

    def _message_delta(self, event: Event) -> None:
        assert not self._is_open
        assert not self._has_ended
        self._has_ended = True
        assert self.message is not None
        self.message |= event["delta"] | {"usage": event["usage"]}

    def _message_stop(self, event: Event) -> None:
        assert self._has_ended
        self.is_over = True
