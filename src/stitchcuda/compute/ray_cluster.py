"""A Ray cluster: an actor for each GPU (or node, for the CPU) that measures, and tasks that build the next program on
the same node meanwhile. Nodes may come and go; jobs of a lost one go to another."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from stitchcuda.compute.model import Capacity, Job, Outcome, Versions, Wanted
from stitchcuda.compute.queueing import Pending, Waiting
from stitchcuda.compute.ray_worker import THREADS, Introduction, RayWorker, build_on_node
from stitchcuda.errors import ComputeError, InfrastructureError, ToolMissing
from stitchcuda.hardware.model import Device

STORE_BYTES = 100 << 20
"""Shared memory of a cluster started here; jobs and results are small."""
WATCH_SECONDS = 2.0
"""Between looks at which nodes there are."""
PATIENCE_SECONDS = 300.0
"""How long jobs wait for a device that no node has."""
QUIET_SECONDS = 5.0
"""An actor that had nothing to do for so long is asked whether it lives before it gets a job."""
ANSWER_SECONDS = 30.0
START_SECONDS = 300.0
MOST_PAUSE_SECONDS = 120.0
MARGIN_SECONDS = 60.0
"""Beyond a job's limit, which the actor itself keeps."""


class Lane:
    """One device of the cluster: its actor, and the thread here that feeds it. Ends when the actor is lost."""

    def __init__(self, place: RayCompute, node: str, kind: Literal["cuda", "cpu"], number: int) -> None:
        self.place, self.node, self.kind, self.number = place, node, kind, number
        self.device: Device | None = None
        self.began = False
        self.busy: Pending | None = None
        self.ended = threading.Event()
        self.actor: Any = None
        self._building: Any = None
        """The latest build ahead; it may still wait for a CPU when its job is done."""
        self._used = time.monotonic()
        self.thread = threading.Thread(target=self._work, name=f"stitchcuda-ray-{kind}{number}", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        ahead: Pending | None = None
        try:
            if not self._begin():
                return
            while not self.place.closed:
                pending = ahead or self.place.waiting.take(self._fits, worker=self, wait=1.0)
                ahead = None
                if pending is None:
                    continue
                if not self._lives():
                    self.place.waiting.put(pending, first=True)
                    return
                self.busy = pending
                lives, ahead = self._do(pending)
                self.busy = None
                if not lives:
                    return
        except Exception as error:
            self.place.problem = f"{type(error).__name__}: {error}"
            if self.busy is not None:
                self._lost(self.busy, self.place.problem)
        finally:
            self.busy = None
            self.place.waiting.forget(self)
            if ahead is not None:
                self.place.waiting.put(ahead, first=True)
            self.ended.set()
            self.end()

    def _begin(self) -> bool:
        ray = self.place.ray
        resources: dict[str, Any] = {"num_cpus": 1}
        if self.kind == "cuda":
            resources = {"num_cpus": 1, "num_gpus": 1}
        self.actor = (
            ray.remote(RayWorker)
            .options(max_restarts=0, scheduling_strategy=self.place.on(self.node), **resources)
            .remote(self.kind, self.place.cache, self.place.threads)
        )
        me = Introduction.model_validate_json(ray.get(self.actor.introduce.remote(), timeout=START_SECONDS))
        here = Versions()
        if not here.goes_with(me.versions):
            self.place.mismatch = (
                f"node {me.host} has stitchcuda {me.versions.stitchcuda} (protocol {me.versions.protocol}) and this is "
                f"{here.stitchcuda} (protocol {here.protocol}); install one version on both sides"
            )
            return False
        self.device = me.facts
        self.began = True
        return True

    def _lives(self) -> bool:
        if time.monotonic() - self._used < QUIET_SECONDS:
            return True
        try:
            return bool(self.place.ray.get(self.actor.answer.remote(), timeout=ANSWER_SECONDS))
        except self.place.ray.exceptions.RayError:
            return False

    def _do(self, pending: Pending) -> tuple[bool, Pending | None]:
        """One attempt; whether the actor still lives, and the job whose program was built meanwhile."""
        if not pending.begin():
            return True, None
        job, ray = pending.job, self.place.ray
        answer = self.actor.run.remote(job.encode())
        ahead = self._ahead()
        try:
            what, data = ray.get(answer, timeout=job.time_limit_s + MARGIN_SECONDS)
        except ray.exceptions.GetTimeoutError:
            pending.fail("time_limit", f"the job took longer than its limit of {job.time_limit_s:g} s")
            return False, ahead
        except ray.exceptions.RayError as error:
            self._lost(pending, str(error).strip().splitlines()[0])
            return False, ahead
        self._used = time.monotonic()
        if what == "outcome":
            pending.settle(Outcome.decode(data))
        else:
            self.place.waiting.forget(self)  # its process ended
            if what == "limit":
                pending.fail("time_limit", data.decode())
            else:
                self._lost(pending, data.decode())
        return True, ahead

    def _ahead(self) -> Pending | None:
        """Take the next job and have its program built on this node, where there is more to do than devices to do it.

        Nobody waits for that here: the actor waits for a build that has begun, and does itself what has not, as
        where actors hold all CPUs.
        """
        place = self.place
        if not place.builds_ahead(self.kind) or len(place.waiting) < place.lanes_of(self.kind) or self._builds():
            return None
        pending = place.waiting.take(self._fits, worker=self, wait=0, steal=False)
        if pending is not None and pending.job.builds:
            task = place.ray.remote(build_on_node).options(num_cpus=1, scheduling_strategy=place.on(self.node))
            self._building = task.remote(pending.job.encode(), place.cache)
        return pending

    def _builds(self) -> bool:
        """Whether the latest build ahead has not ended."""
        return self._building is not None and not self.place.ray.wait([self._building], timeout=0)[0]

    def _lost(self, pending: Pending, how: str) -> None:
        if self.place.closed:
            pending.fail("cancelled", "the place was closed")
        elif pending.attempts < pending.job.attempts:
            self.place.waiting.put(pending, first=True)
        else:
            pending.fail("worker_lost", f"{how}; that was attempt {pending.attempts} of {pending.job.attempts}")

    def _fits(self, job: Job) -> bool:
        return job.wanted.kind == self.kind and self.device is not None and job.wanted.fits(self.device)

    def end(self) -> None:
        """End the actor, in the middle of its job if need be."""
        if self._building is not None:
            with contextlib.suppress(Exception):
                self.place.ray.cancel(self._building)
        if self.actor is not None:
            with contextlib.suppress(Exception):
                self.place.ray.kill(self.actor)


class RayCompute:
    """A cluster by its address; None: the one that RAY_ADDRESS names or this process is connected to, or else one
    started on this machine, which ends with this object.

    ``cache`` is a folder on the nodes; None: each node's own. ``build_ahead``: None for GPUs alone.
    Raises ToolMissing without Ray, ComputeError when the cluster does not answer.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        cache: Path | None = None,
        build_ahead: bool | None = None,
        watch_s: float = WATCH_SECONDS,
        patience_s: float = PATIENCE_SECONDS,
    ) -> None:
        try:
            import ray
        except ImportError:
            raise ToolMissing("Ray is not installed; pip install 'stitchcuda[ray]'") from None
        self.ray: Any = ray
        self.cache = str(cache) if cache is not None else None
        self.build_ahead, self.watch_s, self.patience_s = build_ahead, watch_s, patience_s
        self.threads = {name: os.environ[name] for name in THREADS if name in os.environ}
        self.waiting = Waiting()
        self.closed = False
        self.mismatch = ""
        self.problem = ""
        self._owned = not ray.is_initialized()
        if self._owned:
            self._connect(address)
        self._guard = threading.Lock()
        self._lanes: dict[tuple[str, str, int], Lane] = {}
        self._refused: dict[tuple[str, str, int], tuple[int, float]] = {}
        """Devices whose actor could not begin: how often, and when it is tried again."""
        self._kinds: set[Literal["cuda", "cpu"]] = set()
        self._names: set[str] = set()
        self._hungry: dict[Wanted, float] = {}
        """What waiting jobs ask for and no device is: since when."""
        self._wake = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="stitchcuda-ray", daemon=True)
        self._watcher.start()

    def _connect(self, address: str | None) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
        if address is not None or "RAY_ADDRESS" in os.environ:
            options["address"] = address or os.environ["RAY_ADDRESS"]
        else:
            options |= {"include_dashboard": False, "object_store_memory": STORE_BYTES}
        try:
            self.ray.init(**options)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            where = address or "on this machine"
            raise ComputeError(f"the Ray cluster {where} does not answer: {str(error)[:300]}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, job: Job) -> Future[Outcome]:
        """See ``Compute``."""
        if self.closed:
            raise InfrastructureError("the place was closed; no more jobs can be submitted")
        pending = Pending(job, Future())
        with self._guard:
            known = job.wanted.kind in self._kinds and job.wanted.name in self._names
            self._kinds.add(job.wanted.kind)
            self._names.add(job.wanted.name)
        self.waiting.put(pending)
        if not known:
            self._wake.set()
        return pending.future

    def capacity(self) -> Capacity:
        """See ``Compute``; devices that no job has asked for yet are not known."""
        lanes = self._going()
        gpus = any(node["Alive"] and node["Resources"].get("GPU", 0) >= 1 for node in self.ray.nodes())
        return Capacity(
            kinds=["cuda", "cpu"] if gpus else ["cpu"],
            devices=[lane.device for lane in lanes if lane.device is not None],
            workers=len(lanes),
            queued=len(self.waiting),
            running=sum(lane.busy is not None for lane in lanes),
        )

    def close(self) -> None:
        """See ``Compute``."""
        with self._guard:
            if self.closed:
                return
            self.closed = True
        for pending in self.waiting.close():
            pending.fail("cancelled", "the place was closed")
        self._wake.set()
        self._watcher.join()
        for lane in self._lanes.values():
            lane.end()
        for lane in self._lanes.values():
            lane.ended.wait(ANSWER_SECONDS)
        if self._owned:
            self.ray.shutdown()

    def on(self, node: str) -> Any:
        """Where an actor or a task must run."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node_id=node, soft=False)

    def builds_ahead(self, kind: Literal["cuda", "cpu"]) -> bool:
        """Whether programs are built while their device is busy."""
        return kind == "cuda" if self.build_ahead is None else self.build_ahead

    def lanes_of(self, kind: Literal["cuda", "cpu"]) -> int:
        """How many devices of a kind work."""
        return sum(lane.kind == kind for lane in self._going())

    def _going(self) -> list[Lane]:
        with self._guard:
            return [lane for lane in self._lanes.values() if not lane.ended.is_set()]

    # ---- The thread that watches nodes ----

    def _watch(self) -> None:
        while not self.closed:
            try:
                self._cover()
                self._tell_hungry()
            except Exception as error:
                self.problem = f"{type(error).__name__}: {error}"
            self._wake.wait(self.watch_s)
            self._wake.clear()

    def _cover(self) -> None:
        """A lane for every device that jobs have asked for and that has none; of a lost node there is none left."""
        for node in self.ray.nodes():
            if not node["Alive"]:
                continue
            resources: dict[str, float] = node["Resources"]
            for kind in sorted(self._kinds):
                count = int(resources.get("GPU", 0)) if kind == "cuda" else int(resources.get("CPU", 0) >= 1)
                if kind == "cuda" and not self._wanted_there(resources):
                    continue
                for number in range(count):
                    key = (node["NodeID"], kind, number)
                    with self._guard:
                        if not self.closed and self._may_begin(key):
                            self._lanes[key] = Lane(self, node["NodeID"], kind, number)

    def _may_begin(self, key: tuple[str, str, int]) -> bool:
        """Whether a device needs a lane; one that could not begin waits longer each time."""
        there = self._lanes.get(key)
        if there is None:
            return True
        if not there.ended.is_set():
            return False
        if there.began:
            self._refused.pop(key, None)
            return True
        now = time.monotonic()
        if key not in self._refused:
            self._refused[key] = (1, now + self.watch_s)
        times, again = self._refused[key]
        if now < again:
            return False
        self._refused[key] = (times + 1, now + min(self.watch_s * 2.0**times, MOST_PAUSE_SECONDS))
        return True

    def _wanted_there(self, resources: dict[str, float]) -> bool:
        """Whether a node's kind of GPU, which Ray names as a resource, may be one that jobs ask for."""
        kinds = [name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")]
        return not kinds or "" in self._names or any(kind in name for kind in kinds for name in self._names)

    def _tell_hungry(self) -> None:
        """Fail jobs that nobody can do, once that has lasted."""
        devices = [lane.device for lane in self._going()]
        starting = any(device is None for device in devices)
        now = time.monotonic()
        self._hungry = {
            wanted: self._hungry.get(wanted, now)
            for wanted in self.waiting.wanted()
            if not any(device is not None and wanted.fits(device) for device in devices)
        }
        for wanted, since in self._hungry.items():
            if not starting and (self.mismatch or now - since > self.patience_s):
                what = f"'{wanted.name}'" if wanted.name else wanted.kind
                also = f" ({self.problem})" if self.problem else ""
                for pending in self.waiting.drop(partial(_asks_for, wanted)):
                    if self.mismatch:
                        pending.fail("version_mismatch", self.mismatch)
                    else:
                        pending.fail("no_device", f"no node of the Ray cluster has a working {what}{also}")


def _asks_for(wanted: Wanted, job: Job) -> bool:
    return job.wanted == wanted
