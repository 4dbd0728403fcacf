"""A spool that is carried as a file: jobs there, results back, each once; and nothing that a file says gets outside."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from stitchcuda.compute.model import JobFailure, Outcome
from stitchcuda.compute.spool import SpoolCompute
from stitchcuda.compute.spool_bundle import pack, unpack
from stitchcuda.compute.spool_folder import SpoolFolder
from stitchcuda.errors import ComputeError
from tests.compute.support import PATIENCE, evaluation_of, probe, start_worker


def test_jobs_go_there_and_results_come_back(spool: SpoolCompute, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stitchcuda.cli.main", "worker"]
    here, away = str(spool.folder.path), str(tmp_path / "away")
    there, back = str(tmp_path / "jobs.tar.gz"), str(tmp_path / "results.tar.gz")
    first = [spool.submit(probe(id=f"n{number}")) for number in range(2)]
    subprocess.run([*command, "pack", "--spool", here, "--out", there, "--no-results"], check=True)
    subprocess.run([*command, "unpack", there, "--spool", away], check=True)
    late = spool.submit(probe(id="late"))
    assert start_worker(Path(away), tmp_path, "--until-empty").wait(PATIENCE) == 0
    subprocess.run([*command, "pack", "--spool", away, "--out", back], check=True)
    subprocess.run([*command, "unpack", back, "--spool", here], check=True)
    assert all(future.result(PATIENCE).ok for future in first)
    assert [entry.id for entry in spool.folder.listed("jobs")] == ["late"]
    assert not late.done()


def test_carrying_twice_changes_nothing(tmp_path: Path) -> None:
    one, two, bundle = SpoolFolder(tmp_path / "one"), SpoolFolder(tmp_path / "two"), tmp_path / "b"
    one.submit(evaluation_of("relu", id="waits"))
    one.keep("done~1~w", "trace.json", b"{}")
    done = Outcome(job="done", kind="probe", artifacts={"trace.json": "done~1~w/trace.json"}, run_seconds=1.0)
    one.finish(done, None)
    assert pack(one, bundle) == (1, 1)
    two.finish(Outcome(job="other", kind="probe"), None)
    assert unpack(bundle, two) == (1, 1)
    assert unpack(bundle, two) == (0, 0)
    assert sorted(two.results()) == ["done", "other"]
    told = two.result("done")
    assert told is not None
    assert Path(told.artifacts["trace.json"]).read_bytes() == b"{}"
    claim = two.claim(two.listed("jobs")[0], "w")
    assert claim is not None
    assert two.read(claim) == evaluation_of("relu", id="waits", versions=two.read(claim).versions)


def test_a_job_that_failed_for_a_machines_reasons_goes_again_and_its_old_failure_does_not_come_back(
    spool: SpoolCompute, tmp_path: Path
) -> None:
    away, there, back = SpoolFolder(tmp_path / "away"), tmp_path / "jobs", tmp_path / "results"
    lost = JobFailure(reason="worker_lost", message="three workers were lost with it")

    def carry() -> None:
        pack(spool.folder, there, results=False)
        unpack(there, away)

    first = spool.submit(probe(id="a"))
    carry()
    claim = away.claim(away.listed("jobs")[0], "w")
    assert claim is not None
    away.give_up(claim, lost)
    pack(away, back)
    unpack(back, spool.folder)
    assert first.result(PATIENCE).failure == lost
    again = spool.submit(probe(id="a"))
    assert unpack(back, spool.folder) == (0, 0), "the orchestrator has seen this failure"
    carry()
    assert [entry.id for entry in away.listed("jobs")] == ["a"]
    assert pack(away, back) == (1, 0)
    claim = away.claim(away.listed("jobs")[0], "w")
    away.finish(Outcome(job="a", kind="probe"), claim)
    pack(away, back)
    unpack(back, spool.folder)
    assert again.result(PATIENCE).ok
    carry()
    assert away.listed("jobs") == [], "what has a result is not done again"


def test_a_result_takes_the_place_of_a_failure_that_was_there_first(tmp_path: Path) -> None:
    here, away, back = SpoolFolder(tmp_path / "here"), SpoolFolder(tmp_path / "away"), tmp_path / "results"
    lost = JobFailure(reason="worker_lost", message="lost")
    here.finish(Outcome(job="a", kind="probe", failure=lost), None)
    away.finish(Outcome(job="a", kind="probe"), None)
    pack(away, back)
    assert unpack(back, here) == (0, 1)
    assert here.stands("a")


def test_files_that_were_cleared_away_do_not_go_along_and_links_are_not_followed(tmp_path: Path) -> None:
    folder, bundle = SpoolFolder(tmp_path / "spool"), tmp_path / "b"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "secret").write_text("s")
    (folder.path / "artifacts" / "b~1~w").symlink_to(tmp_path / "mine")
    for job, path in (("a", "a~1~w/gone.json"), ("b", "b~1~w/secret")):
        folder.finish(Outcome(job=job, kind="probe", artifacts={"x": path}), None)
    assert pack(folder, bundle) == (0, 2)
    with tarfile.open(bundle) as tar:
        assert sorted(tar.getnames()) == ["done/a.json", "done/b.json"]


def test_a_bundle_that_cannot_be_written_is_a_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    folder = SpoolFolder(tmp_path / "spool")
    (tmp_path / "b").mkdir()
    with pytest.raises(ComputeError, match="cannot be written"):
        pack(folder, tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "spool"]


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/evil", "jobs/../../evil", "jobs/.evil", "artifacts/a/../../evil", "done", "jobs/a b"]
)
def test_a_name_that_leads_outside_is_refused(tmp_path: Path, name: str) -> None:
    folder = SpoolFolder(tmp_path / "spool")
    with tarfile.open(tmp_path / "bad", "w:gz") as tar:
        facts = tarfile.TarInfo(name)
        facts.size = 2
        tar.addfile(facts, io.BytesIO(b"{}"))
    with pytest.raises(ComputeError, match="does not belong"):
        unpack(tmp_path / "bad", folder)
    assert not list(tmp_path.rglob("*evil*"))


def test_a_result_cannot_name_a_file_outside(tmp_path: Path) -> None:
    folder = SpoolFolder(tmp_path / "spool")
    with tarfile.open(tmp_path / "bad", "w:gz") as tar:
        data = Outcome(job="fine", kind="probe").encode().replace(b"fine", b"../../evil")
        facts = tarfile.TarInfo("done/fine.json")
        facts.size = len(data)
        tar.addfile(facts, io.BytesIO(data))
    with pytest.raises(ComputeError, match="damaged"):
        unpack(tmp_path / "bad", folder)
    assert not list(tmp_path.rglob("*evil*"))


def test_links_and_damaged_files_are_refused(tmp_path: Path) -> None:
    folder, bad = SpoolFolder(tmp_path / "spool"), tmp_path / "bad"
    with tarfile.open(bad, "w:gz") as tar:
        link = tarfile.TarInfo("jobs/a.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(ComputeError, match="does not belong"):
        unpack(bad, folder)
    for data in (b"", b"hello", bad.read_bytes()[:20]):
        bad.write_bytes(data)
        with pytest.raises(ComputeError, match="no bundle"):
            unpack(bad, folder)
