"""Half a request behind a running stream, which it must not cut. `python -m tests.attacks.half_pipelined`."""

import sys
import time

from tests.attacks.watch import attacked
from tests.web.wire import head, post_json, read_until, request_of


def main() -> None:
    with attacked() as (worker, _), worker.connect() as sock:
        began_s = time.monotonic()
        sock.sendall(post_json("/execute", request_of("before-the-half", max_tokens=2000)))
        received = read_until(sock, b'"type":"token"')
        sock.sendall(head("GET", "/health")[:-2])
        try:
            received += read_until(sock, b"0\r\n\r\n")
        except (AssertionError, OSError) as error:
            sys.stdout.write(f"the stream was cut: {error}\n")
        ended = "in full" if b'"type":"end"' in received else "NOT in full"
        sys.stdout.write(f"the stream came {ended}, {time.monotonic() - began_s:.1f} s long\n")


if __name__ == "__main__":
    main()
