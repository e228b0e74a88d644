"""The fields that are read from a request, and the merged page of the workers' metrics. Pure."""

import hashlib
import json
import re
from collections.abc import Iterable

_BLOCK_CHARS = 128
"""Prompts are compared in blocks of about 32 tokens."""
_WORKER_ID = re.compile(r'worker_id="[^"]*"')


def blocks_of(body: bytes) -> tuple[bytes, ...]:
    """A digest for each block of the prompt, of all the text up to its end: two prompts have as many in common as they
    begin with the same blocks. None for a body without a prompt."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(fields, dict):
        return ()
    messages = fields.get("messages")
    # A template puts the tools before the messages.
    parts = [fields.get("tools"), *messages] if isinstance(messages, list) else [fields.get("prompt")]
    text = "".join(json.dumps(part) for part in parts if part)
    digest = hashlib.blake2b(digest_size=16)
    blocks = []
    for end in range(_BLOCK_CHARS, len(text) + 1, _BLOCK_CHARS):
        digest.update(text[end - _BLOCK_CHARS : end].encode())
        blocks.append(digest.digest())
    return tuple(blocks)


def merged(pages: Iterable[str]) -> str:
    """The metrics of all workers: each metric's samples together, its help once, and every sample with `worker_id`."""
    metrics: dict[str, dict[str, None]] = {}
    for page in pages:
        label = _WORKER_ID.findall(page)[0]
        name = ""
        for line in page.splitlines():
            name = line.split(" ", 3)[2] if line.startswith("# ") else name
            metrics.setdefault(name, {})[line if line.startswith("# ") else _labelled(line, label)] = None
    return "".join(f"{line}\n" for lines in metrics.values() for line in lines)


def _labelled(sample: str, label: str) -> str:
    if label in sample:
        return sample
    return sample.replace("{", f"{{{label},", 1) if "{" in sample else sample.replace(" ", f"{{{label}}} ", 1)
