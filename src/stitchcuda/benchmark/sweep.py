"""Running a sweep: items side by side within limits, each durable when it is done, all of it resumable at any point."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import queue
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stitchcuda import __version__
from stitchcuda.benchmark.folder import SETTINGS, Sweep, to_toml, told, write_results
from stitchcuda.benchmark.governor import Governor, Stopped
from stitchcuda.benchmark.item import run_item
from stitchcuda.benchmark.log import NAME, Log
from stitchcuda.benchmark.measuring import Place
from stitchcuda.benchmark.model import Item, Record, SweepConfig
from stitchcuda.benchmark.score import score_item
from stitchcuda.benchmark.suite import absent_of, answers_to, items_of
from stitchcuda.errors import ComputeError, InfrastructureError, ModelAccessError, RunError, StitchError
from stitchcuda.hardware.detect import torch_version, usable_cores
from stitchcuda.workflow.bench import find_kind
from stitchcuda.workflow.events import Silent
from stitchcuda.workflow.interruption import stopped_in_order
from stitchcuda.workflow.records import NAME as RUN_JOURNAL
from stitchcuda.workflow.records import REPLY, read_records
from stitchcuda.workflow.storage import full_disk_is_an_error, write_whole

GRACE_SECONDS = 5.0
"""How long items at work are waited for when the sweep is asked to stop."""
FAILURES = 3
"""Items in a row that may fail since their model or device cannot be reached or the machine fails; then no further one
is begun."""

Tell = Callable[[str], None]


def start(config: SweepConfig, folder: Path, *, tell: Tell) -> Sweep:
    """A new sweep in ``folder``. Raises StitchError for what cannot be used, and leaves no folder then; Interrupted,
    InfrastructureError and ModelAccessError later, with a sweep that can be resumed."""
    if (folder / NAME).exists():
        raise RunError(f"{folder} holds a sweep already; go on with it by `stitchcuda bench resume {folder}`.")
    items = items_of(config)
    _check_access(config)
    config = config.model_copy(update={"target": find_kind(config.compute, config.target)})
    with full_disk_is_an_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / SETTINGS, to_toml(config).encode())
    with Log(folder) as log:
        about = {
            "config": config.model_dump(mode="json"),
            "items": [item.model_dump(mode="json") for item in items],
            "absent": absent_of(config, items),
            "machine": machine(),
        }
        log.add("begun", about)
        return Running(log, folder, tell).run()


def resume(folder: Path, *, tell: Tell, changed: dict[str, Any] | None = None) -> Sweep:
    """Go on with a sweep: items that have a record are left alone, begun ones are gone on with, and those whose
    reference did not run are tried again.

    ``changed``: settings that may change on the way, such as ``jobs`` and ``usd``. Raises as ``start`` does, and
    RunError where the tasks or programs have changed since.
    """
    if not (folder / NAME).is_file():
        raise RunError(f"{folder} is not a sweep: it has no {NAME}.")
    with Log(folder) as log:
        if not log.entries:
            raise RunError(f"{folder} does not say what it is about; remove it and start the sweep anew.")
        sweep = told(log.entries, folder)
        if sweep.todo:
            _unchanged(sweep)
            _check_access(sweep.config)
        if changed or sweep.todo:
            checked = SweepConfig.checked(**(sweep.config.model_dump() | (changed or {}))).model_dump(mode="json")
            kept = {name: checked[name] for name in changed or {}}
            log.add("resumed", {"changed": kept, "machine": machine()})
        return Running(log, folder, tell).run()


def _unchanged(sweep: Sweep) -> None:
    """The tasks, and the programs of others, are still what they were."""
    now = {item.id: item for item in items_of(sweep.config)}
    for item in sweep.todo:
        found = now.get(item.id)
        changed = item.task if found is None or found.digest != item.digest else None
        if found is not None and item.program_digest not in ("", found.program_digest):
            changed = item.program
        if changed is not None:
            raise RunError(
                f"{changed} is not what it was when the sweep began, so its results would not belong together. Put it "
                "back, or start another sweep."
            )


def _check_access(config: SweepConfig) -> None:
    """Raise KeyMissing or the like before anything is begun."""
    if config.suite != "score" and config.model != "recipes":
        from stitchcuda.agents.providers import check_access

        check_access(config.model, config.base_url)


class Running:
    """One pass over the items that are open or to be tried again."""

    def __init__(self, log: Log, folder: Path, tell: Tell) -> None:
        self.log, self.folder, self.tell = log, folder.resolve(), tell
        self.sweep = told(log.entries, folder)
        self.config = self.sweep.config
        self.governor = Governor(
            tokens_per_minute=self.config.tokens_per_minute, usd=self.config.usd, spent=_spent(self.folder)
        )
        self.place = Place(self.config, self.governor)
        self.excluded = answers_to(self.sweep.items)
        self.todo: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self.guard = threading.RLock()
        self.done = len(self.sweep.items) - len(self.sweep.todo)
        self.failures = 0
        self.problem: BaseException | None = None

    def run(self) -> Sweep:
        """All items to be done; results are written whatever happens."""
        opened = self.sweep.todo
        for item in opened:
            self.todo.put(item)
        threads = min(self.config.jobs, len(opened))
        try:
            with stopped_in_order(self.folder), self.place:
                if opened and self._find_device():
                    if threads <= 1:
                        self._work()
                    else:
                        self._side_by_side(threads)
        except (Stopped, KeyboardInterrupt):
            self.log.add("stopped", {"reason": "asked to"})
            self.write()
            raise
        sweep = told(self.log.entries, self.folder)
        if sweep.complete and self.log.entries[-1].kind != "ended":
            self.log.add("ended", {})
        sweep = self.write()
        if self.problem is not None:
            raise self.problem
        return sweep

    def write(self) -> Sweep:
        """Results, table and page as they stand now."""
        from stitchcuda.benchmark.page import page
        from stitchcuda.benchmark.table import markdown

        # One at a time, so that what is written last is the newest.
        with self.guard, full_disk_is_an_error(self.folder):
            sweep = told(self.log.entries, self.folder)
            write_results(sweep, self.folder, table=markdown(sweep), report=page(sweep))
        return sweep

    def _find_device(self) -> bool:
        """Once for all items, and the same when the sweep is resumed: no table mixes machines. False where there is
        none, with the problem kept."""
        try:
            device = self.place.device
        except StitchError as error:
            self.problem = error
            return False
        if self.config.device is None:
            self.log.add("device", {"name": device.name, "target": device.target.kind})
        return True

    def _side_by_side(self, count: int) -> None:
        """Threads of their own, all alive until the last is done, since a process that one has started ends with it."""
        finished = threading.Event()
        left = [count]

        def work() -> None:
            try:
                self._work()
            except Stopped:
                pass
            except BaseException as error:
                self.problem = self.problem or error
                self.governor.stop.set()
            finally:
                with self.guard:
                    left[0] -= 1
                    if left[0] == 0:
                        finished.set()
                finished.wait()

        for number in range(count):
            threading.Thread(target=work, name=f"item-{number}", daemon=True).start()
        try:
            while not finished.wait(0.2):
                pass
        except KeyboardInterrupt:
            self.governor.stop.set()
            self.place.abandon()
            finished.wait(GRACE_SECONDS)
            raise

    def _work(self) -> None:
        """Items one after the other until none is left or no further one is to be begun."""
        while not self.governor.stop.is_set() and self.problem is None:
            try:
                item = self.todo.get_nowait()
            except queue.Empty:
                return
            if self.governor.out_of_money:
                self.log.add("failed", {"item": item.id, "reason": "the sweep's dollars were used before its turn"})
                continue
            try:
                self._item(item)
            except StitchError as error:
                self.governor.check()
                self._failed(item, error)

    def _item(self, item: Item) -> None:
        self.log.add("item", {"item": item.id})
        self.tell(f"{item.id}: begun")
        record = self._tried(item)
        self.failures = 0
        self.log.add("record", record.model_dump(mode="json"))
        with self.guard:
            self.done += 1
            count = self.done
            self.write()
        self.tell(f"[{count}/{len(self.sweep.items)}] {item.id}: {_sentence(record)}")

    def _tried(self, item: Item) -> Record:
        """As often as the settings say where the machine fails; then its last error."""
        for turn in range(1, self.config.tries):
            try:
                return self._once(item)
            except InfrastructureError as error:
                self.governor.check()
                self.log.add("failed", {"item": item.id, "reason": str(error)})
                self.tell(f"{item.id}: the machine failed ({turn} of {self.config.tries}): {error}")
        return self._once(item)

    def _once(self, item: Item) -> Record:
        if self.config.suite == "score":
            return score_item(item, self.config, self.folder, measuring=self.place)
        return run_item(
            item,
            self.config,
            self.folder,
            measuring=self.place,
            governor=self.governor,
            sink=Silent(),
            excluded=self.excluded,
        )

    def _failed(self, item: Item, error: StitchError) -> None:
        """The item stays open. Others may fare better, but not where the model or the place that measures cannot be
        reached or the machine fails again and again, or a run's folder is damaged."""
        self.log.add("failed", {"item": item.id, "reason": str(error)})
        self.tell(f"{item.id}: {error}")
        if isinstance(error, RunError):
            self.problem = self.problem or error
        if isinstance(error, (ModelAccessError, InfrastructureError, ComputeError)):
            self.failures += 1
            if self.failures >= FAILURES:
                self.problem = type(error)(
                    f"{FAILURES} items in a row failed for reasons that are not theirs, so no further one was begun; "
                    f"the last: {error}"
                )


def _sentence(record: Record) -> str:
    best, eager = record.speedup.get("over_best"), record.speedup.get("eager")
    figures = [f"{best:.2f}x best stock"] if best is not None else []
    figures += [f"{eager:.2f}x eager"] if eager is not None else []
    return ", ".join([record.status, *figures]) if record.solved else f"{record.status}: {record.message}"


def _spent(folder: Path) -> float:
    """Dollars of all requests that the sweep's runs have journaled."""
    total = 0.0
    for path in folder.glob(f"items/*/*/{RUN_JOURNAL}"):
        total += sum(float(record.data["usd"]) for record in read_records(path)[0] if record.kind == REPLY)
    return total


def machine() -> dict[str, str]:
    """Who runs the sweep: versions and host, not the device, which every record names."""
    return {
        "stitchcuda": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch_version()[0],
        "pydantic": importlib.metadata.version("pydantic"),
        "system": platform.platform(),
        "cores": str(usable_cores()),
    }


def _commit() -> str:
    """Of the checkout that this package is run from: STITCHCUDA_COMMIT, or git; '' where there is none."""
    given = os.environ.get("STITCHCUDA_COMMIT", "").strip()
    if given:
        return given
    here = str(Path(__file__).parent)
    try:
        head = subprocess.run(
            ["git", "-C", here, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, timeout=10
        )
        dirty = subprocess.run(
            ["git", "-C", here, "status", "--porcelain", "--untracked-files=no", "--", "."],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    if head.returncode != 0:
        return ""
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")
