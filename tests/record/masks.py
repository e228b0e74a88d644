"""Masks cover what two recordings may differ in: ids, times, ports, sizes of memory, paths of a temporary folder."""

import hashlib
import re

_ID = r"(chatcmpl|cmpl|infill|resp|msg|call|toolu|fc|ctc|rs|job|worker|req|fp)([-_])[0-9A-Za-z-]{8,}"
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_MASKS = [
    (re.compile(rf"\b{_ID}\b"), r"\1\2*"),
    (re.compile(_UUID), "uuid*"),
    (re.compile(r'"(id|call_id)":"[0-9A-Za-z]{9}"'), r'"\1":"*"'),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z"), "time"),
    (re.compile(r'"((?:accepted|rejected)_prediction_tokens)":\d+'), r'"\1":0'),
    (re.compile(r'"(created|created_at|completed_at|uptime_seconds)":[0-9.]+'), r'"\1":0'),
    (re.compile(r'"(memory_bytes|vram_bytes|vram_bytes_used|[a-z_]+_ms)":[0-9.]+'), r'"\1":0'),
    (re.compile(r'"(cached_tokens)":\d+'), r'"\1":0'),
    (re.compile(r"nonce(-|=\")[\w-]{22}"), r"nonce\1*"),
    (re.compile(r'"port":\d{5}'), '"port":0'),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:port"),
    (re.compile(r"[^\s\"'=]*/(record-[^/\s\"']+)"), "folder"),
]
MAX_CHARS = 6000
"""A longer text is recorded as its digest."""


_SAMPLE = re.compile(r"^(\w+\{?).*", re.MULTILINE)
_CHOICE = re.compile(r'"choices":\[\{"index":(\d+)')


def masked(text: str) -> str:
    for pattern, to in _MASKS:
        text = pattern.sub(to, text)
    return text


def shown(text: str) -> str:
    """Return the masked text, or what tells it from others if it is long."""
    text = masked(text)
    if len(text) <= MAX_CHARS:
        return text
    return f"{len(text)} characters, sha256 {hashlib.sha256(text.encode()).hexdigest()}"


def names_of_series(text: str) -> str:
    """Return a page of metrics without labels and numbers."""
    return "\n".join(dict.fromkeys(_SAMPLE.sub(r"\1", text).splitlines()))


def in_order(text: str) -> str:
    """Return a stream of several choices with each choice's events together: which comes first is chance."""
    events = text.split("\n\n")
    indexes = [found and int(found[1]) for found in map(_CHOICE.search, events)]
    if len({*indexes} - {None}) < 2:
        return text
    placed = sorted(zip(indexes, events, strict=True), key=lambda one: 99 if one[0] is None else one[0])
    return "\n\n".join(event for _, event in placed)
