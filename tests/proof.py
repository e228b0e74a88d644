"""Proof bundles of tests: the types `determinism` and `e2e-haiku`, from what a worker was asked and answered.

They lie in LLORCH_PROOF_DIR, else in .proof_bundle/ of this checkout, whether the test passes or not.
"""

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parity.bundle import DEFAULT_ROOT, Proof, check_clean, document, lines, markdown, verify, write
from parity.provenance import new_run_id, now_rfc3339, this_machine, versions
from parity.report import json_lines
from tests.worker_process import Event, WorkerProcess, text_of
from worker.host import cpu_quota, sha256_of

CHECKOUT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Scene:
    """A worker as it is after the questions, without the folders of this machine."""

    model: Path
    health: Event
    metrics: dict[str, float]
    log: Sequence[Event]

    @classmethod
    def of(cls, worker: WorkerProcess, model: Path) -> "Scene":
        return cls(model, worker.health(), worker.metrics(), worker.log)

    @property
    def metadata(self) -> Event:
        return {
            "created": now_rfc3339(),
            "model": {"file": self.model.name, "sha256": sha256_of(self.model)},
            "device": this_machine(cpu_quota()),
            "versions": versions(),
            "health": {**self.health, "model_ref": self.model.name},
        }

    @property
    def timings(self) -> Event:
        return {"uptime_seconds": self.health["uptime_seconds"]}

    @property
    def log_lines(self) -> str:
        return f"```\n{self._without_folders(json_lines(self.log).decode())}```\n"

    @property
    def samples(self) -> dict[str, float]:
        """worker_model_info has the model's reference."""
        return {self._without_folders(name): value for name, value in self.metrics.items()}

    def _without_folders(self, text: str) -> str:
        for folder in {self.model.parent, self.model.parent.resolve()}:
            text = text.replace(f"{folder}/", "")
        return text


def determinism(
    scene: Scene, config: Event, requests: Sequence[Event], alone: Sequence[str], beside: Sequence[str]
) -> Proof:
    """The answers to each request alone and beside others, and how they differ."""
    pairs = list(zip(requests, alone, beside, strict=True))
    verdict = "pass" if list(alone) == list(beside) else "fail"
    files = {"run_config.json": document({**config, "requests": requests})}
    for n, (request, first, second) in enumerate(pairs):
        pair = {"request": request, "alone": first, "beside": second, "is_same": first == second}
        files[f"pairs/{n}.json"] = document(pair)
        files[f"diffs/{n}.diff"] = _diff(first, second)
    return Proof(
        type="determinism",
        run_id=os.environ.get("LLORCH_RUN_ID") or new_run_id(),
        about=f"The same requests alone and beside others: **{verdict}**.",
        metadata={**scene.metadata, "verdict": verdict},
        seeds=[{"request": n, "seed": request.get("seed")} for n, request in enumerate(requests)],
        transcript=[{"request": request, "alone": first, "beside": second} for request, first, second in pairs],
        timings=scene.timings,
        files=files,
    )


def haiku(scene: Scene, requests: Sequence[Event], answers: Sequence[Sequence[Event]]) -> Proof:
    """Streams of a poem: the first two requests are the same, the third has another seed."""
    texts = [text_of(events) for events in answers]
    is_same, is_other = texts[0] == texts[1], texts[2] not in ("", texts[0])
    verdict = "pass" if is_same and is_other else "fail"
    report = (
        f"# {verdict.upper()}\n\n- the same seed writes the same haiku: {is_same}\n"
        f"- another seed writes another: {is_other}\n\n" + "\n\n".join(f"```\n{text}\n```" for text in texts) + "\n"
    )
    ready = next((entry for entry in scene.log if entry["event"] == "ready"), {})
    events = [{"request": n, **event} for n, stream in enumerate(answers) for event in stream]
    return Proof(
        type="e2e-haiku",
        run_id=os.environ.get("LLORCH_RUN_ID") or new_run_id(),
        about=f"Haiku over HTTP from a running worker: **{verdict}**, see [test_report.md](test_report.md).",
        metadata={**scene.metadata, "verdict": verdict},
        seeds=[{"request": n, "seed": request["seed"]} for n, request in enumerate(requests)],
        transcript=[{"request": request, "text": text} for request, text in zip(requests, texts, strict=True)],
        timings={**scene.timings, "ends": [stream[-1] for stream in answers]},
        files={
            "gpu_env.json": document({"device": ready.get("device"), "vram_bytes": scene.health["vram_bytes"]}),
            "sse_transcript.ndjson": lines(events),
            "metrics_snapshot.json": document({"samples": scene.samples}),
            "run_log_redacted.md": markdown(scene.log_lines),
            "test_report.md": markdown(report),
        },
    )


def keep(proof: Proof, into: Path | None = None) -> Path:
    """Write the bundle and check it as a reader would: nothing is missing or changed, and it names nobody."""
    folder = write(into or Path(os.environ.get("LLORCH_PROOF_DIR") or CHECKOUT / DEFAULT_ROOT), proof)
    assert verify(folder) == []
    check_clean({path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()})
    return folder


def _diff(first: str, second: str) -> bytes:
    changed = difflib.unified_diff(first.splitlines(), second.splitlines(), "alone", "beside", lineterm="")
    return "".join(f"{line}\n" for line in changed).encode()
