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
    with tarfile.open(aside, "w:gz", compresslevel=1) as tar:
        for entry in folder.listed("jobs"):
            try:
                data = read_regular(folder.path / "jobs" / entry.name, LARGEST)
            except (FileNotFoundError, BadFile):
                continue  # begun meanwhile, or damaged: a worker will say so
            _add(tar, f"jobs/{entry.id}.json", data)
            waiting += 1
        for name in sorted(folder.results()) if results else []:
            outcome = folder.result(name)
            if outcome is None:
                continue
            for path in outcome.artifacts.values():
                where = PurePosixPath("artifacts", Path(path).parent.name, Path(path).name)
                _add(tar, str(where), read_regular(Path(path), LARGEST))
            _add(tar, f"done/{name}.json", read_regular(folder.path / "done" / f"{name}.json", LARGEST))
            done += 1
    aside.replace(out)
    return waiting, done


def unpack(source: Path, folder: SpoolFolder) -> tuple[int, int]:
    """Take jobs and results in, those that are not there yet; how many of each were new. A job that has a result now
    waits no longer. Raises ComputeError for a file that is no such bundle; nothing outside of the spool is written."""
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
                    job = Job.decode(data)
                    if job.id not in present and not folder.finished(job.id):
                        folder.submit(job)
                        jobs += 1
                elif kind == "done":
                    results += folder.take(Outcome.decode(data), data)
                else:
                    folder.keep(rest[0], rest[1], data)
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise ComputeError(f"{source} is no bundle of jobs, or is damaged: {str(error)[:200]}") from None
    for entry in folder.listed("jobs"):
        if folder.finished(entry.id):
            folder.withdraw(entry)
    return jobs, results


def _plain(part: str) -> bool:
    """A part of a name in a spool, such as an id or 'ID~ATTEMPT~WORKER'."""
    return len(part) < 250 and all(piece and NAME.fullmatch(piece[:100]) for piece in part.split("~"))


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    facts = tarfile.TarInfo(name)
    facts.size = len(data)
    tar.addfile(facts, io.BytesIO(data))
