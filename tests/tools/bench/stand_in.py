"""A small loopback server that speaks both dialects as its manner says: whole answers, cut ones, refusals."""

import json
from dataclasses import dataclass
from typing import Any

from tests.loopback import LoopbackServer, QuietHandler
from tools.bench.dialects import LlamaServer
from tools.bench.exchange import Address
from tools.bench.sides import Part, ServedSide

Event = dict[str, Any]


@dataclass
class Manner:
    """The way the stand-in answers."""

    status: int = 200
    """The status of every job's answer."""
    n_fewer: int = 0
    """An answer is this many tokens shorter than was asked for."""
    cut_after: int | None = None
    """The connection is closed after this many token events."""
    is_ready: bool = True


class StandIn(LoopbackServer):
    """`jobs` grows with every request."""

    def __init__(self, **manner: Any) -> None:
        self.jobs: list[Event] = []
        super().__init__(type("_Handler", (_Handler,), {"manner": Manner(**manner), "jobs": self.jobs}))

    def as_side(self, part: Part = "ours") -> ServedSide:
        return ServedSide("stand-in", part, Address.of(self.url), LlamaServer())


class _Handler(QuietHandler):
    manner: Manner
    jobs: list[Event]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        said = {"build_info": "b1-stand-in"} if self.path == "/props" else {}
        self._plain(200 if self.manner.is_ready else 503, json.dumps(said).encode())

    def do_POST(self) -> None:
        job = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.jobs.append(job)
        if self.manner.status != 200:
            self._plain(self.manner.status, b'{"code":"TEAPOT"}')
            return
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        is_ours = "job_id" in job
        n_tokens = job["max_tokens" if is_ours else "n_predict"] - self.manner.n_fewer
        n_prompt = len(job["prompt"].split())
        if is_ours:
            self._send({"type": "started", "job_id": job["job_id"], "seed": 1, "prompt_tokens": n_prompt})
        for number in range(n_tokens):
            if number == self.manner.cut_after:
                self.close_connection = True
                return
            ours = {"type": "token", "t": f" w{number}", "i": number}
            self._send(ours if is_ours else {"index": 0, "content": f" w{number}", "stop": False})
        end = {"type": "end", "tokens_out": n_tokens, "stop_reason": "MAX_TOKENS", "tokens_sampled": n_tokens}
        theirs = {"content": "", "stop": True, "tokens_evaluated": n_prompt, "timings": {"predicted_n": n_tokens}}
        self._send(end if is_ours else theirs)
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, event: Event) -> None:
        piece = b"data: " + json.dumps(event).encode() + b"\n\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.flush()

    def _plain(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
