"""100 bodies of 2 MiB at once, several times. `python -m tests.attacks.bodies`."""

import asyncio
import json
import sys
import time
from collections import Counter

from tests.attacks.watch import apart, attacked
from tests.web.wire import JSON, head

N_BODIES = 100
N_ROUNDS = 3
BODY_BYTES = 2 * 1024 * 1024


def largest_request() -> bytes:
    """A request of exactly the largest size, whose prompt is then found to be too long."""
    fields = {"job_id": "large", "max_tokens": 1, "prompt": ""}
    return json.dumps(fields | {"prompt": "x" * (BODY_BYTES - len(json.dumps(fields)))}).encode()


def flood(port: int) -> Counter[str]:
    """How often each status line came."""
    return asyncio.run(_flood(port))


async def _flood(port: int) -> Counter[str]:
    body = largest_request()
    request = head("POST", "/execute", content_type=JSON, content_length=len(body)) + body
    return Counter(await asyncio.gather(*(_send(port, request) for _ in range(N_BODIES))))


async def _send(port: int, request: bytes) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return (await reader.readline()).decode().strip() or "cut"
    except OSError as error:
        return type(error).__name__
    finally:
        writer.transport.abort()


def main() -> None:
    with attacked() as (worker, _):
        for _ in range(N_ROUNDS):
            began_s = time.monotonic()
            statuses = apart(flood, worker.port)
            sys.stdout.write(f"{dict(statuses)} in {time.monotonic() - began_s:.1f} s\n")


if __name__ == "__main__":
    main()
