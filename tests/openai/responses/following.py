"""A reader of the events of `/v1/responses` that accepts no event out of its place, and sums up what they say."""

import json
from collections.abc import Mapping
from typing import Any

Event = Mapping[str, Any]

LIFE = "response.in_progress"
TERMINAL = ("response.completed", "response.incomplete", "response.failed")

DELTAS = {
    "response.output_text.delta": "message",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.function_call_arguments.delta": "function_call",
    "response.custom_tool_call_input.delta": "custom_tool_call",
}
DONE = {name.removesuffix("delta") + "done": kind for name, kind in DELTAS.items()}
PARTS_ADDED = {"response.content_part.added": "content", "response.reasoning_summary_part.added": "summary"}
PARTS_DONE = {name.removesuffix("added") + "done": place for name, place in PARTS_ADDED.items()}


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


def text_of(item: Mapping[str, Any]) -> str:
    """The text of an item, whatever its kind."""
    match item["type"]:
        case "function_call":
            return str(item["arguments"])
        case "custom_tool_call":
            return str(item["input"])
        case _:
            return "".join(part["text"] for part in [*item.get("summary", ()), *(item.get("content") or ())])


class Follower:
    """Follows a stream. `take` raises AssertionError for an event that may not come now."""

    def __init__(self) -> None:
        self.n_taken = 0
        self.items: list[Mapping[str, Any]] = []
        """The items that are done."""
        self.last: Event | None = None
        """The terminal event."""
        self._open: Mapping[str, Any] | None = None
        self._text: str | None = None
        """The sum of the open item's deltas; None if its part has not begun."""
        self._is_done = self._is_part_done = False

    def take(self, event: Event) -> None:
        kind = event["type"]
        assert self.last is None, f"{kind} after {self.last}"
        assert event["sequence_number"] == self.n_taken
        assert (kind == "response.created") == (self.n_taken == 0)
        self.n_taken += 1
        if kind in ("response.created", LIFE):
            assert event["response"]["status"] == "in_progress"
        elif kind in TERMINAL:
            self._end(event)
        elif kind == "response.output_item.added":
            self._begin(event)
        elif kind == "response.output_item.done":
            self._finish(event)
        else:
            assert self._open is not None, kind
            assert (event["item_id"], event["output_index"]) == (self._open["id"], len(self.items))
            self._inside(event)

    def _begin(self, event: Event) -> None:
        assert self._open is None
        assert event["output_index"] == len(self.items)
        self._open = event["item"]
        assert event["item"].get("status", "in_progress") == "in_progress"
        assert not text_of(event["item"])
        self._text = "" if event["item"]["type"].endswith("call") else None
        self._is_done = self._is_part_done = False

    def _inside(self, event: Event) -> None:
        assert self._open is not None
        kind = event["type"]
        if kind in PARTS_ADDED:
            assert self._text is None
            assert event["part"]["text"] == ""
            self._text = ""
            return
        assert self._text is not None, kind
        if kind in DELTAS:
            assert DELTAS[kind] == self._open["type"]
            assert not self._is_done
            assert event["delta"]
            self._text += event["delta"]
        elif kind in DONE:
            assert not self._is_done
            self._is_done = True
            assert self._text == next(event[name] for name in ("text", "arguments", "input") if name in event)
        else:
            assert kind in PARTS_DONE, kind
            assert self._is_done
            self._is_part_done = True
            assert event["part"]["text"] == self._text

    def _finish(self, event: Event) -> None:
        assert self._open is not None
        item = event["item"]
        assert (item["id"], item["type"]) == (self._open["id"], self._open["type"])
        assert event["output_index"] == len(self.items)
        assert self._is_done
        assert self._is_part_done or item["type"].endswith("call")
        assert text_of(item) == self._text
        self.items.append(item)
        self._open = None

    def _end(self, event: Event) -> None:
        kind, response = event["type"], event["response"]
        assert response["status"] == kind.removeprefix("response.")
        assert (response["error"] is not None) == (kind == "response.failed")
        assert (response["incomplete_details"] is not None) == (kind == "response.incomplete")
        if kind != "response.failed":
            assert self._open is None
            assert response["output"] == self.items
            usage = response["usage"]
            assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        self.last = event
