"""Profiles of the ten level-3 test tasks of KernelBench, eager, by two tools that must agree, and their top kernels.

    python benchmarks/profile_level3.py --root KERNELBENCH [--slice-seconds 480] [--counters 3]
    python benchmarks/profile_level3.py --merge A.json B.json
    python benchmarks/profile_level3.py --render
    python benchmarks/profile_level3.py --rejudge benchmarks/results/profile_truth.json [--count-work --root FOLDER]

Each task runs under Nsight Systems (--cuda-graph-trace=node) and under torch.profiler (Kineto), and its longest kernels
under Nsight Compute. Both tools must agree on the sum of device time within 5 %, and the time that the device is busy
must lie below the span of the same calls by CUDA events. Nsight Systems is found as ``stitchcuda profile`` finds it:
STITCHCUDA_NSYS names it, STITCHCUDA_NSYS_LIBRARIES the folder of a libdw that the system lacks.

On several GPUs, start it once for each with CUDA_VISIBLE_DEVICES, some of the tasks and another ``--results`` file, and
merge those. Every finished task is added to the result file (and the .md page beside it) at once; what the file holds
is skipped next time. Works from a plain checkout. Exit status: 0 all tasks are there and agree, 1 one disagrees or
failed, 3 the slice is over and tasks are left. With ``--target cpu`` (to try it) there is Kineto alone.

``--rejudge FILE`` applies this checkout's rules to the counters and timelines that the results hold, with the ceilings
in FILE, a result of ``profile_truth.py`` on the same kind of GPU, and writes suggestions and digests anew. The coarse
labels of whole calls stay; nothing is measured. ``--count-work`` first counts the bytes and FLOP of a call from the
tasks' sources where a result does not hold them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE.parent / "src"), os.environ.get("PYTHONPATH"))))

from provenance import gpu_provenance, write_json, write_text  # noqa: E402

from stitchcuda.compute.folders import data_folder  # noqa: E402
from stitchcuda.errors import StitchError  # noqa: E402
from stitchcuda.hardware.ceilings import measure as measure_ceilings  # noqa: E402
from stitchcuda.hardware.detect import detect  # noqa: E402
from stitchcuda.hardware.model import Device  # noqa: E402
from stitchcuda.profiling.capture import Subject, Taken, record  # noqa: E402
from stitchcuda.profiling.counting import Counted, count  # noqa: E402
from stitchcuda.profiling.diagnosis import rank  # noqa: E402
from stitchcuda.profiling.digest import digest  # noqa: E402
from stitchcuda.profiling.model import Profile  # noqa: E402
from stitchcuda.profiling.profiler import cause_by_kernels, first_suggestion, from_recording, least_bytes  # noqa: E402
from stitchcuda.profiling.rules import Work, call_cause  # noqa: E402
from stitchcuda.task.loader import load_task  # noqa: E402
from stitchcuda.task.model import Target  # noqa: E402

TASKS = (2, 18, 19, 21, 22, 23, 24, 32, 38, 39)
"""KernelBench's numbers of the level-3 test tasks, in the checkout that was measured."""
AGREE = 0.05
"""Largest difference of the two tools' sums of device time, of the larger one."""
COUNTED_SHARE = 0.02
LEAST_SECONDS = 45.0
"""No task is started with less of the slice left than this."""
UNFINISHED = 3


def profile_task(name: str, options: argparse.Namespace, device: Device) -> dict[str, Any]:
    """One task's entry; every step's failure is kept as a sentence and the others go on."""
    entry: dict[str, Any] = {"task": name, "errors": [], "seconds": {}}
    try:
        task = load_task(name, target=device.target, root=options.root)
    except StitchError as error:
        return entry | {"errors": [f"task: {error}"]}
    entry |= {"name": task.name, "precision": task.precision}
    subject = Subject(task, None)
    profiles: dict[str, Profile] = {}
    taken: dict[str, Taken] = {}
    for source in ("nsys", "kineto") if device.target.kind == "cuda" else ("kineto",):
        began = time.monotonic()
        try:
            taken[source] = record(subject, "nsys" if source == "nsys" else "kineto")
            profiles[source] = summary(taken[source], subject, device, Counted([]))
            entry[source] = times(taken[source], profiles[source])
        except StitchError as error:
            entry["errors"].append(f"{source}: {error}")
        entry["seconds"][source] = time.monotonic() - began
    main = "nsys" if "nsys" in profiles else "kineto"
    if main not in profiles:
        return entry
    profile = profiles[main]
    if options.counters and device.target.kind == "cuda":
        began = time.monotonic()
        wanted = [k.name for k in profile.kernels if k.origin != "copy" and k.share >= COUNTED_SHARE]
        try:
            counted = count(subject, list(dict.fromkeys(wanted))[: options.counters], timeout_s=options.ncu_seconds)
            profile = summary(taken[main], subject, device, counted)
        except StitchError as error:
            entry["errors"].append(f"ncu: {error}")
        entry["seconds"]["ncu"] = time.monotonic() - began
    entry["profile"] = profile.model_dump(mode="json")
    if (facts := taken[main].facts) is not None:
        entry["work"] = asdict(Work(least_bytes(facts, task.precision), taken[main].flops, task.precision))
    entry["digest"] = digest(profile)
    if len(profiles) == 2:
        entry["agreement"] = agreement(entry["nsys"], entry["kineto"])
    return entry


def summary(taken: Taken, subject: Subject, device: Device, counted: Counted) -> Profile:
    """The Profile of a recording."""
    return from_recording(
        taken,
        subject="reference",
        device=device,
        facts=taken.facts,
        precision=subject.task.precision,
        counters=counted.kernels,
    )


def rejudge(entry: dict[str, Any], device: Device | None) -> dict[str, Any]:
    """The entry with its kernels' diagnoses, the call's cause, the first suggestion (where the call's work is known)
    and the digest as this checkout tells them."""
    if not entry.get("profile"):
        return entry
    profile = Profile.model_validate(entry["profile"])
    ranked = rank(profile.counters, profile.kernels, profile.timeline.wall_seconds, device=device)
    cause, _ = call_cause(profile.timeline, device)
    if cause == "none":
        cause = cause_by_kernels(profile.bottleneck, ranked)
    changed: dict[str, Any] = {"diagnoses": ranked, "cause": cause}
    if entry.get("work"):
        line, work = profile.timeline, Work(**entry["work"])
        changed["suggestion"] = first_suggestion(line, profile.kernels, ranked, device=device, work=work)
    profile = profile.model_copy(update=changed)
    return entry | {"profile": profile.model_dump(mode="json"), "digest": digest(profile)}


def count_work(entry: dict[str, Any], root: Path | None) -> dict[str, Any]:
    """The entry with the bytes and FLOP of a call, counted from the task's source by shapes alone (torch's meta
    device), where the measurement did not keep them."""
    if entry.get("work"):
        return entry
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    task = load_task(entry["task"], target=Target(kind="cuda", arch="sm_90"), root=root)
    module: dict[str, Any] = {}
    exec(compile(task.source, entry["task"], "exec"), module)
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        model, inputs = module["Model"](*module["get_init_inputs"]()), module["get_inputs"]()
        output = model(*inputs)
    tensors = [t for t in torch.utils._pytree.tree_leaves([inputs, output]) if isinstance(t, torch.Tensor)]
    moved = sum(t.numel() * t.element_size() for t in [*tensors, *model.parameters()])
    return entry | {"work": asdict(Work(float(moved), float(counter.get_total_flops()), task.precision))}


def times(taken: Taken, profile: Profile) -> dict[str, Any]:
    """What one tool says of a call, seconds."""
    line = profile.timeline
    return {
        "version": profile.version,
        "device_seconds": line.device_seconds,
        "busy_seconds": line.busy_seconds,
        "launches": line.launches,
        "traced_event_seconds": taken.traced_event_seconds,
        "event_seconds": taken.event_seconds,
        "wall_seconds": taken.wall_seconds,
        "confinement": taken.confinement,
        "remarks": profile.remarks,
    }


def agreement(nsys: dict[str, Any], kineto: dict[str, Any]) -> dict[str, Any]:
    """How far the two are apart, and whether each is below the span of its calls by CUDA events."""
    larger = max(nsys["device_seconds"], kineto["device_seconds"])
    difference = abs(nsys["device_seconds"] - kineto["device_seconds"]) / larger if larger > 0 else 1.0
    below = all(0 < one["busy_seconds"] <= one["traced_event_seconds"] for one in (nsys, kineto))
    unprofiled = all(0 < one["busy_seconds"] <= one["event_seconds"] for one in (nsys, kineto))
    return {
        "difference": difference,
        "agree": difference <= AGREE,
        "below_event_span": below,
        "below_event_span_of_calls_without_profiler": unprofiled,
    }


def page(document: dict[str, Any]) -> str:
    """The Markdown page of a result."""
    items = document["items"]
    good = sum(bool(i.get("agreement", {}).get("agree") and i["agreement"]["below_event_span"]) for i in items)
    parts = [
        "# Profiles of KernelBench level 3, eager",
        "",
        f"Nsight Systems and Kineto agree on the device time within {AGREE:.0%}, and both lie below the span by CUDA"
        f" events, for {good} of {len(items)} tasks. Times are ms per call: *sum* over all device operations, *busy*"
        " their union, *span* of the same calls by CUDA events.",
        "",
        "| task | nsys sum | Kineto sum | apart | nsys busy | nsys span | Kineto busy | Kineto span | kernels"
        " | bottleneck |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for item in items:
        nsys, kineto = item.get("nsys"), item.get("kineto")
        apart = f"{item['agreement']['difference']:.2%}" if "agreement" in item else "-"
        cells = [
            item.get("name", item["task"]),
            _ms(nsys, "device_seconds"),
            _ms(kineto, "device_seconds"),
            apart,
            _ms(nsys, "busy_seconds"),
            _ms(nsys, "traced_event_seconds"),
            _ms(kineto, "busy_seconds"),
            _ms(kineto, "traced_event_seconds"),
            str((nsys or kineto or {}).get("launches", "-")),
            item.get("profile", {}).get("bottleneck", "-") + _cause(item),
        ]
        parts.append(f"| {' | '.join(cells)} |")
    parts += ["", "## Digests, as agents see them", ""]
    for item in items:
        parts += [f"### {item.get('name', item['task'])}", ""]
        parts += [f"- failed: {error}" for error in item["errors"]]
        parts += [item.get("digest", ""), ""]
    where = items[-1]["provenance"] if items else {}
    facts = [f"{key} {where[key]}" for key in ("gpu", "driver", "cuda", "torch", "commit", "date") if where.get(key)]
    again = (
        " Kernels' diagnoses, suggestions and digests by later rules, of the same measurements."
        if document.get("rejudged")
        else ""
    )
    parts += [f"`{document['command']}`; {'; '.join(facts)}.{again}"]
    return "\n".join(parts) + "\n"


def _cause(item: dict[str, Any]) -> str:
    cause = item.get("profile", {}).get("cause", "none")
    return f" ({cause})" if cause != "none" else ""


def _ms(times_: dict[str, Any] | None, name: str) -> str:
    return f"{times_[name] * 1e3:.3f}" if times_ else "-"


def main() -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help="tasks; default: the ten level-3 test tasks")
    parser.add_argument("--root", type=Path, help="KernelBench's checkout or Parquet folder")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "profile_level3.json")
    parser.add_argument("--slice-seconds", type=float, default=480.0, help="stop starting tasks after this long")
    parser.add_argument("--counters", type=int, default=3, help="kernels of each task that ncu reads; 0: none")
    parser.add_argument("--ncu-seconds", type=float, default=100.0, help="longest time for ncu on one task")
    parser.add_argument("--target", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--again", action="store_true", help="profile tasks anew that are in the file already")
    parser.add_argument("--no-ceilings", action="store_true", help="do not measure the device's ceilings (10 s)")
    parser.add_argument("--merge", nargs="*", type=Path, default=[], help="take the items of these result files in")
    parser.add_argument("--render", action="store_true", help="write the .md page of the result file again")
    parser.add_argument("--count-work", action="store_true", help="with --rejudge: count bytes and FLOP from sources")
    parser.add_argument("--rejudge", type=Path, help="apply the rules again, with the ceilings of this result file")
    options = parser.parse_args()
    document: dict[str, Any] = {"command": "python benchmarks/profile_level3.py", "items": []}
    if options.results.is_file():
        document = json.loads(options.results.read_text())
    names = options.tasks or [f"kernelbench:3/{number}" for number in TASKS]
    for other in options.merge:
        more = json.loads(other.read_text())["items"]
        fresh = {item["task"] for item in more}
        document["items"] = sort([i for i in document["items"] if i["task"] not in fresh] + more, names)
        write_json(options.results, document)
    if options.rejudge:
        device = Device.model_validate(json.loads(options.rejudge.read_text())["device"])
        if options.count_work:
            document["items"] = [count_work(item, options.root) for item in document["items"]]
        document["items"] = [rejudge(item, device) for item in document["items"]]
        document["rejudged"] = True
        write_json(options.results, document)
    if not (options.render or options.merge or options.rejudge):
        work(names, options, document)
    write_text(options.results.with_suffix(".md"), page(document))
    done = {item["task"]: item for item in document["items"]}
    left = [name for name in names if name not in done or not done[name].get("profile")]
    bad = [n for n in names if n in done and (done[n]["errors"] or not _agrees(done[n]))]
    print(f"{len(names) - len(left)} of {len(names)} profiled; {len(bad)} disagree or failed in part: {bad}")
    return UNFINISHED if left else 1 if bad else 0


def sort(items: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    """In the order of the tasks."""
    order = {task: place for place, task in enumerate(names)}
    return sorted(items, key=lambda item: order.get(item["task"], len(order)))


def _agrees(item: dict[str, Any]) -> bool:
    found = item.get("agreement")
    return found is None or bool(found["agree"] and found["below_event_span"])


def work(names: list[str], options: argparse.Namespace, document: dict[str, Any]) -> None:
    """Profile what is not in the document yet until the slice is over, writing each task when it is done."""
    began = time.monotonic()
    device = detect(options.target)
    if not options.no_ceilings:
        device = device.model_copy(update={"ceilings": measure_ceilings(device, data_folder())})
    provenance = gpu_provenance()
    for name in names:
        known: dict[str, Any] = next((item for item in document["items"] if item["task"] == name), {})
        if known.get("profile") and not known["errors"] and _agrees(known) and not options.again:
            continue
        left = options.slice_seconds - (time.monotonic() - began)
        if left < LEAST_SECONDS:
            print(f"{left:.0f} s are left of the slice: {name} waits for another", flush=True)
            return
        started = time.monotonic()
        entry = profile_task(name, options, device) | {"provenance": provenance}
        document["items"] = sort([item for item in document["items"] if item["task"] != name] + [entry], names)
        write_json(options.results, document)
        told = "; ".join(entry["errors"]) or json.dumps(entry.get("agreement", {}))
        print(f"{name}: {time.monotonic() - started:.0f} s; {told}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
