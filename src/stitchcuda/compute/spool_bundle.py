"""A spool carried to where no file system is shared: what waits there and what was done, in one tar file, and back into
another spool. The same two steps serve both directions."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path, PurePosixPath

from stitchcuda.compute.model import NAME, Job, Outcome
from stitchcuda.compute.spool_files import BadFile, read_regular
from stitchcuda.compute.spool_folder import LARGEST, SpoolFolder
from stitchcuda.errors import ComputeError


def pack(folder: SpoolFolder, out: Path, *, results: bool = True) -> tuple[int, int]:
    """Write the jobs that wait, and unless ``results`` is false all results with their artifacts; how many of each.
    Nothing in the spool changes."""
    aside = out.with_name(f".{out.name}.part")
    waiting, done = 0, 0
    try:
        with tarfile.open(aside, "w:gz", compresslevel=1) as tar:
            for entry in folder.listed("jobs"):
                # One that is gone was begun meanwhile; one that is damaged, a worker will say so.
                waiting += _take(tar, f"jobs/{entry.id}.json", folder.path / "jobs" / entry.name)
            for name in sorted(folder.results()) if results else []:
                outcome = folder.result(name)
                for path in map(Path, outcome.artifacts.values()) if outcome is not None else []:
                    if not path.parent.is_symlink():  # what was cleared away does not go along either
                        _take(tar, str(PurePosixPath("artifacts", path.parent.name, path.name)), path)
                done += _take(tar, f"done/{name}.json", folder.path / "done" / f"{name}.json")
        aside.replace(out)
    except OSError as error:
        raise ComputeError(f"{out} cannot be written: {error.strerror or error}") from None
    finally:
        aside.unlink(missing_ok=True)
    return waiting, done


def unpack(source: Path, folder: SpoolFolder) -> tuple[int, int]:
    """Take jobs and results in, those that are not there yet; how many of each were new. A job that has a result now
    waits no longer. A result that only says that the machine failed gives way: to a better one, and to the job itself,
    which is submitted again for no other reason. Raises ComputeError for a file that is no such bundle; nothing outside
    of the spool is written."""
    present = {entry.id for entry in (*folder.listed("jobs"), *folder.listed("claimed"))}
    jobs, results = 0, 0
    try:
        with tarfile.open(source, "r:gz") as tar:
            for member in tar:
                kind, *rest = PurePosixPath(member.name).parts
                file = tar.extractfile(member) if member.isfile() and member.size <= LARGEST else None
                known = kind in ("jobs", "done", "artifacts") and len(rest) == 1 + (kind == "artifacts")
                if file is None or not known or not all(map(_plain, rest)):
                    raise ComputeError(f"{source}: '{member.name[:200]}' does not belong into a bundle of jobs")
                data = file.read()
                if kind == "jobs":
                    jobs += _take_job(folder, Job.decode(data), present)
                elif kind == "done":
                    results += _take_result(folder, Outcome.decode(data), data)
                else:
                    folder.keep(rest[0], rest[1], data)
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise ComputeError(f"{source} is no bundle of jobs, or is damaged: {str(error)[:200]}") from None
    for entry in folder.listed("jobs"):
        if folder.finished(entry.id):
            folder.withdraw(entry)
    return jobs, results


def _take_job(folder: SpoolFolder, job: Job, present: set[str]) -> bool:
    if job.id in present or folder.stands(job.id):
        return False
    if folder.finished(job.id):
        folder.forget(job.id)
    folder.submit(job)
    present.add(job.id)
    return True


def _take_result(folder: SpoolFolder, outcome: Outcome, data: bytes) -> bool:
    if outcome.machine_failed:
        # Who submitted the job may have seen it, and asks again: the bundle is then an old one.
        return not folder.put_aside(outcome.job, data) and folder.take(outcome, data)
    if folder.finished(outcome.job) and not folder.stands(outcome.job):
        folder.forget(outcome.job)
    return folder.take(outcome, data)


def _plain(part: str) -> bool:
    """A part of a name in a spool, such as an id or 'ID~ATTEMPT~WORKER'."""
    return len(part) < 250 and all(piece and NAME.fullmatch(piece[:100]) for piece in part.split("~"))


def _take(tar: tarfile.TarFile, name: str, path: Path) -> bool:
    """Add a file of the spool; False for one that is gone, or that nobody would read."""
    try:
        data = read_regular(path, LARGEST)
    except (FileNotFoundError, BadFile):
        return False
    facts = tarfile.TarInfo(name)
    facts.size = len(data)
    tar.addfile(facts, io.BytesIO(data))
    return True
