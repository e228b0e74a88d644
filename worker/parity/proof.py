"""A parity run's report as the evidence of its bundle. Owns: which file says what; bundle.py writes them."""

from collections.abc import Sequence

from worker.front.certificate import REPORT_FILE
from worker.parity.bundle import Proof, markdown
from worker.parity.markdown import cell, to_markdown
from worker.parity.report import Report, to_json

REPORT_TEXT = "report.md"


def proof_of(report: Report, *, seeds: Sequence[object] = (), transcript: Sequence[object] = ()) -> Proof:
    """`seeds`: every seed that was used and for what; `transcript`: what the model was asked and what it answered."""
    return Proof(
        type="parity",
        run_id=report.run_id,
        about=f"Parity of {cell(report.model.file)} with {cell(report.reference.name)}: **{report.verdict}**, "
        f"see [{REPORT_TEXT}]({REPORT_TEXT}).",
        metadata={
            "created": report.created,
            "verdict": report.verdict,
            "model": report.model,
            "reference": report.reference,
            "device": report.machine,
            "versions": report.versions,
            "parameters": report.parameters,
        },
        seeds=seeds,
        transcript=transcript,
        timings={
            "levels": {
                level.name: {"seconds": level.seconds, "budget_seconds": level.budget_seconds}
                for level in report.levels
                if level.verdict != "not run"
            },
            "total_seconds": sum(level.seconds for level in report.levels),
        },
        files={
            REPORT_FILE: to_json(report),
            REPORT_TEXT: markdown(to_markdown(report)),
        },
    )
