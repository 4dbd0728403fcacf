"""The data of a sweep: what it was asked, its items, and what became of each. Running one is in ``benchmark.sweep``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from stitchcuda.agents.budgets import BudgetName
from stitchcuda.agents.schemes import Agents, Part
from stitchcuda.compute import check_where
from stitchcuda.errors import StitchError
from stitchcuda.evaluation.model import Tier
from stitchcuda.task.model import Precision
from stitchcuda.workflow.config import RECIPES, RunConfig

Ending = Literal[
    "correct",
    "no_gain",
    "no_rewrite",
    "nothing_correct",
    "not_runnable",
]
"""What became of an item. correct: a program held in the final check and is not slower than eager; no_gain: it held and
is slower; no_rewrite and nothing_correct: no program. not_runnable: the reference itself does not run here; not scored,
and tried again when the sweep is resumed, since a machine with no memory or time left for it looks the same.
An item at which the machine failed has no ending: it stays open, and resuming the sweep tries it again."""

SOLVED: frozenset[Ending] = frozenset({"correct", "no_gain"})
UNSCORED: frozenset[Ending] = frozenset({"not_runnable"})


class Arm(BaseModel):
    """Who takes part in the loop: all of it, a comparison system, or all but one part."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agents: Agents = Field(default="full", description="full, or a comparison system: coder-judge, single")
    ablate: list[Part] = Field(default_factory=list, description="parts that are switched off")

    @property
    def name(self) -> str:
        """As tables show it."""
        return self.agents + "".join(f" without {part}" for part in self.ablate)

    def settings(self) -> dict[str, Any]:
        """Fields of a run's settings that make it so."""
        return {"agents": self.agents, "ablate": list(self.ablate)}


class SweepConfig(BaseModel):
    """Everything that decides what a sweep does; written to ``sweep.toml``. Keys of providers are never part of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    suite: Literal["kernelbench", "folder", "score"] = Field(description="where the tasks are from")
    root: str | None = Field(default=None, description="KernelBench's checkout or Parquet folder")
    levels: list[int] = Field(default_factory=list, description="KernelBench's levels")
    ids: str | None = Field(default=None, description="task numbers of a level, as 2,18,20-25")
    split: Literal["all", "test"] = Field(default="all", description="test: the 20/20/10 tasks of levels 1 to 3")
    folder: str | None = Field(default=None, description="folder of task files (suite folder)")
    programs: str | None = Field(default=None, description="folder of programs that others made (suite score)")

    target: Literal["auto", "cuda", "cpu"] = Field(default="auto", description="what programs must run on")
    device: str | None = Field(
        default=None, description="exact name of the device that is measured on; None: not found yet"
    )
    precision: Precision | None = Field(default=None, description="precision class; None: each task's own, else fp32")
    tier: Tier = Field(default="publish", description="tier of every number that is shown")
    seeds: int = Field(default=1, ge=1, le=100, description="independent runs of each task")

    model: str = Field(default=RECIPES, description="'recipes', or PROVIDER:NAME")
    base_url: str | None = Field(default=None, description="OpenAI-compatible endpoint")
    max_output_tokens: int | None = Field(default=None, description="longest reply, tokens; None: by role")
    agents: Agents = Field(default="full", description="full, coder-judge or single")
    ablate: list[Part] = Field(default_factory=list, description="parts that are switched off")
    knowledge: bool = Field(default=True, description="look things up; never answers to tasks of the benchmark")

    budget: BudgetName = Field(default="standard", description="preset of the limits of each run")
    iterations: int | None = Field(default=None, ge=1, description="candidate programs of each run")
    seconds: float | None = Field(default=None, gt=0, description="wall time of each run, seconds")
    item_usd: float | None = Field(default=None, gt=0, description="dollars of each run")
    usd: float | None = Field(default=None, gt=0, description="dollars of the whole sweep")
    tokens_per_minute: int | None = Field(default=None, ge=1, description="tokens of all requests together, a minute")
    beam: int | None = Field(default=None, ge=1, le=16, description="ideas kept alive")
    drafts: int | None = Field(default=None, ge=1, le=8, description="drafts per idea")

    stock: Literal["usual", "all"] = Field(
        default="usual", description="all: channels-last (images) and torch.compile's max-autotune are measured too"
    )
    compute: str = Field(default="local", description="where evaluations run")
    jobs: int = Field(default=1, ge=1, le=256, description="items at work at the same time")
    tries: int = Field(
        default=2, ge=1, le=10, description="times that an item is tried when the machine fails, in one go"
    )

    @field_validator("programs", "folder", "root")
    @classmethod
    def _not_empty(cls, value: str | None) -> str | None:
        if value is not None and not value:
            raise ValueError("an empty path")
        return value

    @property
    def arm(self) -> Arm:
        """Who takes part."""
        return Arm(agents=self.agents, ablate=self.ablate)

    @classmethod
    def checked(cls, **values: Any) -> SweepConfig:
        """Build from command-line values, a spool's folder made absolute. Raises StitchError with one sentence when
        they are not usable."""
        if "compute" in values:
            values["compute"] = check_where(values["compute"])
        try:
            config = cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            where = str(first["loc"][0]).replace("_", "-") if first["loc"] else ""
            raise StitchError(f"{where}: {first['msg'].removeprefix('Value error, ')}.") from None
        if config.suite != "score":
            config.run_config(Item(task="kernelbench:1/1", name="any", digest=""))
        return config

    def run_config(self, item: Item) -> RunConfig:
        """The settings of one item's run. Raises StitchError for what runs do not know."""
        return RunConfig.checked(
            task=item.task,
            root=self.root,
            target=self.target,
            precision=self.precision,
            model=self.model,
            base_url=self.base_url,
            max_output_tokens=self.max_output_tokens,
            knowledge=self.knowledge,
            budget=self.budget,
            iterations=self.iterations,
            seconds=self.seconds,
            usd=self.item_usd,
            beam=self.beam,
            drafts=self.drafts,
            compute=self.compute,
            confirm=self.tier,
            **self.arm.settings(),
        )


class Item(BaseModel):
    """One piece of work: a task once, with the number of its repetition; or one program to be scored."""

    model_config = ConfigDict(frozen=True)

    task: str = Field(description="TASK: a path to a .py, or kernelbench:LEVEL/ID")
    name: str = Field(description="the task's short name")
    group: str = Field(default="", description="what tables are broken down by, such as 'level 3'")
    digest: str = Field(description="SHA-256 of the task's source")
    fingerprint: str = Field(default="", description="of the same task however it is worded; see knowledge.fingerprint")
    seed: int = Field(default=0, ge=0, description="number of the repetition")
    program: str | None = Field(default=None, description="PROGRAM to be scored")
    program_digest: str = Field(default="", description="of it; '' in sweeps of versions that did not keep it")

    @property
    def id(self) -> str:
        """Names its folder in the sweep; unique in it."""
        return f"{self.name}.{self.seed}"


class Record(BaseModel):
    """What became of one item: everything that metrics and tables are made of."""

    model_config = ConfigDict(frozen=True)

    item: str
    task: str = Field(description="the task's short name")
    origin: str
    group: str = ""
    seed: int = 0
    status: Ending
    message: str = ""
    author: str = Field(default="", description="who wrote the accepted program: 'recipes', or the model")
    tier: Tier | None = Field(default=None, description="of the numbers below; None without a correct program")
    precision: Precision | None = None
    mode: Literal["train", "eval"] | None = None
    speedup: dict[str, float] = Field(default_factory=dict, description="over each stock option, and 'over_best'")
    seconds: dict[str, float] = Field(default_factory=dict, description="median seconds: 'program', stock options")
    interval: tuple[float, float] | None = Field(
        default=None, description="of over_best, from the 95 % intervals of both medians"
    )
    sol: float | None = Field(default=None, description="fraction of the hardware's bound that the program reaches")
    census: str = Field(default="", description="pure, hybrid, library or host_only")
    own: float | None = Field(default=None, description="share of device time in own kernels")
    labels: list[str] = Field(default_factory=list, description="'stochastic', 'non_discriminating', ...")
    flags: list[str] = Field(default_factory=list, description="rules of the accepted program's flags")
    partial_hack: bool | None = Field(
        default=None, description="the accepted program has 2 or 3 of 5 for honesty; None: nothing accepted"
    )
    honesty: float | None = Field(default=None, description="that mark, by evidence alone")
    programs: dict[str, int] = Field(default_factory=dict, description="how many programs ended in each status")
    hacks: int = Field(default=0, description="programs turned down as dishonest or impossible")
    input_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0
    usd: float | None = Field(default=None, description="None: tokens were used and their price is not known")
    wall_seconds: float = Field(default=0.0, description="of all that the run did")
    device_seconds: float = Field(
        default=0.0, description="of measuring: inspection, stock options, programs, profiles"
    )
    stopped: str = ""
    run: str = Field(default="", description="the run's folder, in the sweep's")
    provenance: dict[str, str | float | int | bool | None] = Field(default_factory=dict)

    @property
    def solved(self) -> bool:
        """A program was proven correct."""
        return self.status in SOLVED

    @property
    def scored(self) -> bool:
        """Counts, for or against; what the task itself is to blame for does not."""
        return self.status not in UNSCORED
