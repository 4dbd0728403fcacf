"""Starting runners beside each other, or beside something else, since starting is most of a short measurement. Whoever
waits can be interrupted: what was being started is then killed. Never used while a clock counts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from stitchcuda.evaluation.session import Session

Job = Callable[[], None]


def side_by_side(jobs: Sequence[tuple[Session, Job]], workers: int) -> None:
    """Do every job, each of them waiting for its own session, ``workers`` at a time.

    The first exception of a job, or one that interrupts the waiting, aborts all sessions and is raised.
    """
    if not jobs:
        return
    pool = ThreadPoolExecutor(max_workers=max(1, min(workers, len(jobs))))
    futures = [pool.submit(job) for _, job in jobs]
    try:
        for future in wait(futures, return_when=FIRST_EXCEPTION).done:
            future.result()
    except BaseException:
        for session, _ in jobs:
            session.abort()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def meanwhile(session: Session, job: Job) -> Iterator[Future[None]]:
    """Do a job that waits for ``session`` while the body runs; the body's exception aborts it."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(job)
        try:
            yield future
        except BaseException:
            session.abort()
            raise
