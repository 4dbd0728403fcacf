"""Equal causes of failure have equal fingerprints, different ones different."""

from __future__ import annotations

from stitchcuda.agents.fingerprint import cause, digest, fingerprint
from stitchcuda.evaluation.model import Finding
from tests.agents.support import evaluation


def build_failure(line: int, name: str = "foo", folder: str = "/tmp/a1b2") -> str:
    log = f"{folder}/kernels.cu({line}): error: identifier '{name}' is undefined\n1 error detected"
    return fingerprint(evaluation("build_failed", log=log))


def test_lines_folders_and_addresses_do_not_count() -> None:
    assert build_failure(12) == build_failure(99, folder="/var/cache/x")
    segfaults = [evaluation("crashed", message=f"signal 11 at 0x7f{n:04x}") for n in (1, 2)]
    assert fingerprint(segfaults[0]) == fingerprint(segfaults[1])


def test_another_error_or_status_is_another_fingerprint() -> None:
    marks = {build_failure(12), build_failure(12, name="bar"), fingerprint(evaluation("timed_out"))}
    marks.add(fingerprint(evaluation("wrong_output")))
    assert len(marks) == 4


def test_a_correct_program_has_none() -> None:
    assert fingerprint(evaluation()) == ""
    assert cause(evaluation()) == ""


def test_a_rejecting_finding_is_the_cause() -> None:
    findings = [Finding(rule="clock", severity="reject", evidence="patched perf_counter")]
    assert cause(evaluation("dishonest", findings=findings)).startswith("clock:")


def test_a_digest_keeps_the_first_error_and_drops_repetition() -> None:
    log = "In file included from x\n" * 500 + "".join(f"note {n}\n" for n in range(900)) + "k.cu:3: error: bad\n" * 40
    short = digest(log, 600)
    assert len(short) < 700
    assert short.count("error: bad") == 1
    assert digest("one line") == "one line"
