"""What stands above every table of a sweep: device, versions, precision class, tier and baselines, as they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stitchcuda.benchmark.folder import Sweep, unique
from stitchcuda.benchmark.model import Record
from stitchcuda.workflow.config import RECIPES

STOCK = {
    "eager": "eager",
    "eager_tf32": "eager with TF32",
    "channels_last": "eager, channels last",
    "cuda_graph": "CUDA graph",
    "compile": "torch.compile",
    "compile_reduce_overhead": "torch.compile (reduce-overhead)",
    "compile_max_autotune": "torch.compile (max-autotune)",
}
"""Stock options as people call them."""

MIXED = {
    "torch": "versions of torch",
    "cuda": "versions of CUDA",
    "driver": "versions of the driver",
    "stitchcuda": "versions of stitchcuda",
    "confinement": "levels of confinement",
}
"""Of a record's provenance, what a table should have one of."""


def heading(sweep: Sweep) -> list[tuple[str, str]]:
    """Name and value of everything that the numbers below rest on. What differs between records is said with counts."""
    records = [record for record in sweep.records if record.scored]
    solved = [record for record in records if record.solved]
    lines = [
        ("suite", sweep.about),
        ("programs by", sweep.mind),
        ("device", _several(_of(records, "device")) or "none was used yet"),
        ("driver, CUDA, torch", _versions(records)),
        ("precision class", _several(str(r.precision) for r in records if r.precision)),
        ("tier", _tier(solved, sweep)),
        ("stock options", _stock(solved) or "none measured yet"),
        ("runs of each task", str(1 + max((item.seed for item in sweep.items), default=0))),
        ("confinement", _several(_of(records, "confinement"))),
        (_host_name(sweep), _host(sweep)),
        ("stitchcuda", _own_version(records, sweep)),
        ("measured", _dates(sweep)),
    ]
    if sweep.open:
        lines.append(("incomplete", f"{len(sweep.records)} of {len(sweep.items)} items are done"))
    return [(name, value) for name, value in lines if value]


def title(sweep: Sweep) -> str:
    """One line."""
    return f"{sweep.about}: {sweep.mind}"


def warnings(sweep: Sweep) -> list[str]:
    """What must be read before any number: mixtures, another tier, parts missing."""
    records = [record for record in sweep.records if record.scored]
    told = []
    if sweep.config.tier != "publish" or any(r.tier == "screen" for r in records):
        told.append("Numbers of the screen tier are for the inner loop and are not to be published.")
    if len(set(_of(records, "device"))) > 1:
        told.append("Several devices took part: speedups stand, times do not compare.")
    if len({r.precision for r in records if r.precision}) > 1:
        told.append("Several precision classes took part; each speedup is over stock options of its own class.")
    told += [f"Several {what} took part." for name, what in MIXED.items() if len(set(_of(records, name))) > 1]
    if len(_machines(sweep, "commit")) > 1:
        told.append("Several commits of stitchcuda took part.")
    if len({r.tier for r in records if r.tier}) > 1:
        told.append("Several tiers took part.")
    if sweep.absent:
        names = ", ".join(sweep.absent[:5]) + (", ..." if len(sweep.absent) > 5 else "")
        asked = len(sweep.absent) + len({item.task for item in sweep.items})
        told.append(f"Of {asked} tasks asked for {len(sweep.absent)} have no program, and count nowhere: {names}.")
    if lost := {record.task for record in sweep.records if not record.scored}:
        told.append(
            f"{len(lost)} of {len({item.name for item in sweep.items})} tasks do not run here and count nowhere; "
            "bench resume tries them again."
        )
    solved = [r for r in records if r.solved]
    if any(count < len(solved) for count in _stock_counts(solved).values()):
        told.append("Not every stock option was measured beside every program; the best is that of those that were.")
    if sweep.config.model != RECIPES and (theirs := sum(r.author == RECIPES for r in solved)):
        told.append(
            f"Of {len(solved)} accepted programs {theirs} are not the model's but the recipes', which stand beside it; "
            "--ablate recipes measures the model alone."
        )
    if sweep.open:
        told.append(f"Not done, and not counted in any number below: {len(sweep.open)} of {len(sweep.items)} items.")
    return told


def _of(records: Iterable[Record], name: str) -> list[str]:
    return [str(record.provenance[name]) for record in records if record.provenance.get(name)]


def _several(values: Iterable[str]) -> str:
    counts = Counter(values)
    if len(counts) <= 1:
        return next(iter(counts), "")
    return ", ".join(f"{value} ({count})" for value, count in counts.most_common())


def _versions(records: Iterable[Record]) -> str:
    def line(record: Record) -> str:
        found = record.provenance
        parts = [f"driver {found['driver']}"] if found.get("driver") else []
        parts += [f"CUDA {found['cuda']}"] if found.get("cuda") else []
        parts += [f"torch {found['torch']}"] if found.get("torch") else []
        return ", ".join(parts)

    return _several(text for record in records if (text := line(record)))


def _stock_counts(solved: list[Record]) -> Counter[str]:
    return Counter(name for record in solved for name in record.seconds if name != "program")


def _stock(solved: list[Record]) -> str:
    counts = _stock_counts(solved)
    return ", ".join(
        STOCK.get(name, name) + ("" if count == len(solved) else f" ({count} of {len(solved)})")
        for name, count in counts.items()
    )


def _tier(solved: list[Record], sweep: Sweep) -> str:
    return _several(str(record.tier) for record in solved) or f"{sweep.config.tier} (no number yet)"


def _host_name(sweep: Sweep) -> str:
    place = sweep.config.compute.partition(":")[0]
    return "host" if place == "local" else f"run over {place} from"


def _host(sweep: Sweep) -> str:
    """Where the sweep was run from; evaluations elsewhere have their own host."""
    return "; ".join(unique(_about_host(machine) for machine in (sweep.machine, *sweep.resumed)))


def _about_host(have: dict[str, str]) -> str:
    parts = [f"{have['cores']} cores"] if have.get("cores") else []
    parts += [f"Python {have['python']}"] if have.get("python") else []
    return ", ".join([*parts, *([have["system"]] if have.get("system") else [])])


def _machines(sweep: Sweep, name: str) -> list[str]:
    """What those that ran the sweep say of themselves, each value once."""
    return unique(machine.get(name, "") for machine in (sweep.machine, *sweep.resumed))


def _own_version(records: Iterable[Record], sweep: Sweep) -> str:
    """Of what measured, where that is known; the commits are of those that ran the sweep."""
    version = _several(_of(records, "stitchcuda")) or ", ".join(_machines(sweep, "stitchcuda"))
    commits = _machines(sweep, "commit")
    return ", ".join([version, f"commit {' and '.join(commits)}"]) if commits else version


def _dates(sweep: Sweep) -> str:
    dates = sorted(value[:10] for record in sweep.records if (value := str(record.provenance.get("date") or "")))
    if not dates:
        return f"begun {sweep.begun[:10]}"
    return dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
