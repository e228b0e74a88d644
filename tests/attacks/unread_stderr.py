"""A supervisor that keeps the worker's stderr and never reads it. `python -m tests.attacks.unread_stderr`."""

import subprocess
import sys
import time

import httpx2
import psutil

from tests.attacks.watch import GIVE_UP_S
from tests.default_model import default_file
from tests.web.wire import request_of

N_JOBS = 300
"""Each is two lines of the log, about 600 bytes: together far more than the 64 KiB of a pipe."""


def main() -> None:
    command = [sys.executable, "-m", "worker", "--model", str(default_file()), "--port", "0", "--log-format", "json"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            _besiege(psutil.Process(process.pid))
        finally:
            process.kill()


def _besiege(process: psutil.Process) -> None:
    with httpx2.Client(base_url=_url(process), timeout=GIVE_UP_S, trust_env=False) as client:
        while client.get("/health").json()["state"] == "starting":
            time.sleep(0.1)
        for number in range(N_JOBS):
            try:
                client.post("/execute", json=request_of(f"unread-{number}", max_tokens=1)).raise_for_status()
            except httpx2.HTTPError as error:
                sys.stdout.write(f"job {number + 1} was not answered: {type(error).__name__}\n")
                return
        began_s = time.monotonic()
        status = client.get("/health").status_code
        latency_ms = 1000 * (time.monotonic() - began_s)
        sys.stdout.write(f"{N_JOBS} jobs were answered; then /health: {status} in {latency_ms:.1f} ms\n")


def _url(process: psutil.Process) -> str:
    while process.is_running():
        for connection in process.net_connections("tcp4"):
            if connection.status == psutil.CONN_LISTEN:
                return f"http://127.0.0.1:{connection.laddr.port}"
        time.sleep(0.1)
    raise SystemExit("the worker ended before it listened")


if __name__ == "__main__":
    main()
