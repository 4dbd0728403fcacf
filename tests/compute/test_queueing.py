"""What waits at an orchestrator: order, preference for who has a task open, and that nothing starves, is lost or done
twice."""

from __future__ import annotations

import random
import threading
from concurrent.futures import Future

import pytest

from stitchcuda.compute import queueing
from stitchcuda.compute.executor import OPEN_TASKS
from stitchcuda.compute.model import Job
from stitchcuda.compute.queueing import PASSED_OVER, Pending, Waiting
from tests.compute.support import evaluation_of, probe


def pending(job: Job) -> Pending:
    return Pending(job, Future())


def anything(job: Job) -> bool:
    return True


def taken(waiting: Waiting, worker: str = "one", *, wait: float = 0, steal: bool = True) -> str | None:
    found = waiting.take(anything, worker=worker, wait=wait, steal=steal)
    return found.job.id if found is not None else None


def line_of(*jobs: str) -> Waiting:
    """A queue of evaluations, each named by its task and a number, such as 'gelu 1'."""
    waiting = Waiting()
    for name in jobs:
        waiting.put(pending(evaluation_of(name.split()[0], id=name.replace(" ", "-"))))
    return waiting


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
    waiting = line_of("gelu 0", "relu 0", *(f"gelu {number}" for number in range(1, PASSED_OVER + 4)))
    order = [taken(waiting) for _ in range(20)]
    assert order.index("relu-0") == PASSED_OVER + 1


@pytest.mark.parametrize("order", ["task by task", "in turn"])
def test_each_task_is_one_workers_in_whatever_order_its_jobs_came(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queueing, "SETTLE_SECONDS", 60)
    names = [f"{task} {number}" for task in ("gelu", "relu", "sum", "mean") for number in range(4)]
    if order == "in turn":
        names.sort(key=lambda name: name[-1])
    waiting = line_of(*names)
    given = [(worker, taken(waiting, worker)) for _ in range(8) for worker in ("one", "two")]
    tasks = {(worker, job.split("-")[0]) for worker, job in given if job is not None}
    assert len(tasks) == 4
    assert len({job for _, job in given}) == 16


def test_a_job_is_left_to_who_has_its_task_open_unless_that_one_lets_it_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queueing, "SETTLE_SECONDS", 60)
    waiting = line_of("gelu 0")
    assert taken(waiting, "one") == "gelu-0"
    for number in (1, 2):
        waiting.put(pending(evaluation_of("gelu", id=f"gelu-{number}")))
    assert taken(waiting, "two") is None
    assert taken(waiting, "one") == "gelu-1"
    monkeypatch.setattr(queueing, "SETTLE_SECONDS", 0.2)
    assert taken(waiting, "two", wait=60) == "gelu-2", "one is busy, and no worker idles while a job waits"


def test_an_idle_worker_opens_what_nobody_has_and_then_helps_where_most_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queueing, "SETTLE_SECONDS", 0)
    waiting = line_of("gelu 0", "relu 0")
    assert [taken(waiting, "one"), taken(waiting, "two")] == ["gelu-0", "relu-0"]
    for name in ("gelu-1", "relu-1", "relu-2", "sum-0"):
        waiting.put(pending(evaluation_of(name.split("-")[0], id=name)))
    assert taken(waiting, "three") == "sum-0"
    assert taken(waiting, "three", steal=False) is None
    assert taken(waiting, "three") == "relu-1"
    assert taken(waiting, "three") == "relu-2"
    assert taken(waiting, "three") == "gelu-1"


def test_what_a_worker_no_longer_has_open_is_anybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queueing, "SETTLE_SECONDS", 60)
    tasks = ("gelu", "relu", "sum", "mean")[: OPEN_TASKS + 1]
    waiting = line_of(*(f"{task} 0" for task in tasks))
    for _ in tasks:
        taken(waiting, "one")
    for task in tasks:
        waiting.put(pending(evaluation_of(task, id=f"{task}-1")))
    assert taken(waiting, "two") == f"{tasks[0]}-1", "it has closed its first"
    assert taken(waiting, "two") is None
    waiting.forget("one")
    assert taken(waiting, "two") == f"{tasks[1]}-1"


def test_jobs_without_a_task_wait_their_turn() -> None:
    waiting = line_of("gelu 0")
    waiting.put(pending(probe(id="probe")))
    waiting.put(pending(evaluation_of("relu", id="relu-0")))
    waiting.put(pending(evaluation_of("gelu", id="gelu-1")))
    assert [taken(waiting) for _ in range(4)] == ["gelu-0", "gelu-1", "probe", "relu-0"]


def test_urgent_jobs_go_first_wherever_their_task_is_open() -> None:
    waiting = line_of("gelu 0", "gelu 1")
    assert taken(waiting) == "gelu-0"
    waiting.put(pending(evaluation_of("relu", id="urgent", priority=1)))
    assert [taken(waiting), taken(waiting)] == ["urgent", "gelu-1"]


def test_workers_that_come_and_go_take_every_job_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queueing, "SETTLE_SECONDS", 0.01)
    names = [f"{task} {number}" for number in range(25) for task in ("gelu", "relu", "sum", "mean")]
    waiting, given, guard = line_of(*names), [], threading.Lock()

    def work(worker: int) -> None:
        chance = random.Random(worker)
        while (job := taken(waiting, str(worker), wait=1.0, steal=chance.random() < 0.5)) is not None or len(waiting):
            if job is not None:
                with guard:
                    given.append(job)
            if chance.random() < 0.2:
                waiting.forget(str(worker))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(given) == sorted(name.replace(" ", "-") for name in names)


def test_only_what_fits_is_taken_wherever_it_stands() -> None:
    waiting = Waiting()
    for number in range(100):
        waiting.put(pending(probe(id=f"n{number}")))
    found = waiting.take(lambda job: job.id == "n99", worker="one", wait=0)
    assert found is not None
    assert found.job.id == "n99"
    assert len(waiting) == 99


def test_closing_wakes_whoever_waits_and_gives_back_what_is_left() -> None:
    waiting = Waiting()
    waiting.put(pending(probe(id="left")))
    seen: list[Pending | None] = []
    thread = threading.Thread(target=lambda: seen.append(waiting.take(lambda job: False, worker="one", wait=60)))
    thread.start()
    assert [entry.job.id for entry in waiting.close()] == ["left"]
    thread.join(30)
    assert seen == [None]
    late = pending(probe(id="late"))
    waiting.put(late)
    failure = late.future.result(0).failure
    assert failure is not None
    assert failure.reason == "cancelled"
