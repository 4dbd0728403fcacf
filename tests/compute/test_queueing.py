"""What waits at an orchestrator: order, preference for an open task, and that nothing starves."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from stitchcuda.compute.model import Job
from stitchcuda.compute.queueing import PASSED_OVER, Pending, Waiting
from tests.compute.support import evaluation_of, probe


def pending(job: Job) -> Pending:
    return Pending(job, Future())


def anything(job: Job) -> bool:
    return True


def taken(waiting: Waiting, **options: object) -> str | None:
    found = waiting.take(anything, wait=0, **options)  # type: ignore[arg-type]
    return found.job.id if found is not None else None


def test_jobs_go_by_priority_and_then_as_they_came() -> None:
    waiting = Waiting()
    for name, priority in (("b1", 50), ("a", 10), ("b2", 50), ("c", 90)):
        waiting.put(pending(probe(id=name, priority=priority)))
    assert [taken(waiting) for _ in range(5)] == ["a", "b1", "b2", "c", None]


def test_a_job_whose_worker_died_goes_before_its_equals() -> None:
    waiting = Waiting()
    waiting.put(pending(probe(id="next")))
    waiting.put(pending(probe(id="again")), first=True)
    waiting.put(pending(probe(id="urgent", priority=1)))
    assert [taken(waiting) for _ in range(3)] == ["urgent", "again", "next"]


def test_a_task_that_is_open_goes_first_but_not_for_ever() -> None:
    waiting = Waiting()
    waiting.put(pending(evaluation_of("relu", id="other")))
    for number in range(PASSED_OVER + 4):
        waiting.put(pending(evaluation_of("gelu", id=f"open{number}")))
    order = [taken(waiting, near=lambda job: job.task is not None and job.task.name == "gelu") for _ in range(20)]
    assert order.index("other") == PASSED_OVER


def test_only_what_fits_is_taken_wherever_it_stands() -> None:
    waiting = Waiting()
    for number in range(100):
        waiting.put(pending(probe(id=f"n{number}")))
    found = waiting.take(lambda job: job.id == "n99", wait=0)
    assert found is not None
    assert found.job.id == "n99"
    assert len(waiting) == 99


def test_closing_wakes_whoever_waits_and_gives_back_what_is_left() -> None:
    waiting = Waiting()
    waiting.put(pending(probe(id="left")))
    seen: list[Pending | None] = []
    thread = threading.Thread(target=lambda: seen.append(waiting.take(lambda job: False, wait=60)))
    thread.start()
    assert [entry.job.id for entry in waiting.close()] == ["left"]
    thread.join(30)
    assert seen == [None]
    late = pending(probe(id="late"))
    waiting.put(late)
    failure = late.future.result(0).failure
    assert failure is not None
    assert failure.reason == "cancelled"
