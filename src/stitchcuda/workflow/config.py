"""The settings of a run: typed once, written to the run folder as ``config.toml``, without secrets."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from stitchcuda.agents.budgets import PRESETS, Budget, BudgetName
from stitchcuda.agents.schemes import Agents, Part
from stitchcuda.compute import check_where
from stitchcuda.errors import RunError, StitchError
from stitchcuda.task.model import Precision
from stitchcuda.workflow.budget import Limits

RECIPES = "recipes"
"""The model-free mind's name, the default of ``model``."""

FOR_A_MODEL = ("planner_model", "coder_model", "repair_model", "verifier_model", "base_url", "max_output_tokens")
"""Settings that say something only where a language model answers."""

RECIPE_LIMITS = Limits(iterations=12, seconds=900, tokens=0, usd=0)
"""A mind without a model has few ideas and no bill; its bound is only there to end."""

COUNTED = 3
"""Kernels of a profile whose hardware counters a model sees on a GPU: replaying one takes seconds."""

ROUNDS: dict[Agents, int] = {"coder-judge": 10, "single": 1}
"""Programs that the comparison systems write, where nobody says otherwise."""


class RunConfig(BaseModel):
    """Everything that decides what a run does, besides the Task. Keys of providers are never part of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str = Field(description="TASK as given: a path to a .py, or kernelbench:LEVEL/ID")
    root: str | None = Field(default=None, description="KernelBench's checkout or Parquet folder")
    target: Literal["auto", "cuda", "cpu"] = Field(default="auto", description="what the program must run on")
    precision: Precision | None = Field(default=None, description="precision class; None: the task's own, else fp32")
    inputs: str | None = Field(default=None, description=".pt file of real inputs")
    checkpoint: str | None = Field(default=None, description="file of real weights")
    submodule: str | None = Field(default=None, description="optimise only this part of the model")

    model: str = Field(default=RECIPES, description="'recipes', or PROVIDER:NAME")
    planner_model: str | None = Field(default=None, description="another model for the Planner")
    coder_model: str | None = Field(default=None, description="another model for the Coder's drafts")
    repair_model: str | None = Field(default=None, description="another model for the Coder's repairs")
    verifier_model: str | None = Field(default=None, description="another model for the Verifier")
    base_url: str | None = Field(default=None, description="OpenAI-compatible endpoint")
    max_output_tokens: int | None = Field(
        default=None, ge=1_000, description="longest reply, tokens; None: 4,000 to 16,000 by role, doubled if cut off"
    )

    seeds: bool = Field(default=True, description="try the recipes' best idea beside the model's")
    knowledge: bool = Field(default=True, description="look things up in the knowledge base for the model")

    agents: Agents = Field(default="full", description="full, or a comparison system: coder-judge, single")
    ablate: list[Part] = Field(default_factory=list, description="parts that are switched off")

    budget: BudgetName = Field(default="standard", description="preset of the four limits below")
    iterations: int | None = Field(default=None, ge=1, description="candidate programs, repairs not counted")
    seconds: float | None = Field(default=None, gt=0, description="wall time, seconds")
    tokens: int | None = Field(default=None, ge=1, description="tokens of model requests")
    usd: float | None = Field(default=None, gt=0, description="dollars of model requests")

    target_speedup: float | None = Field(
        default=None, gt=0, description="stop, and answer yes, at this speedup over the best stock option"
    )
    sol_fraction: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="stop at this fraction of the hardware's bound, if every stock option is beaten",
    )
    beam: int | None = Field(
        default=None, ge=1, le=16, description="ideas kept alive; None: the preset's, or 4 for recipes"
    )
    drafts: int | None = Field(
        default=None, ge=1, le=64, description="drafts per idea; None: the preset's, or 1 for recipes"
    )
    counters: int | None = Field(
        default=None,
        ge=0,
        le=16,
        description="kernels whose counters the agents see; None: 3 with a model on a GPU, else 0",
    )
    repairs: int = Field(default=3, ge=0, le=10, description="repairs of one candidate")
    parallel: int | None = Field(
        default=None, ge=1, le=32, description="branches tried at the same time; None: all of a round, or 1 for recipes"
    )
    replans: int | None = Field(default=None, ge=0, description="further plans; None: 2, or 0 for recipes")

    from_program: str | None = Field(default=None, description="PROGRAM to start from")
    approve_plan: bool = Field(default=False, description="stop for a look at the plan before anything is written")
    compute: str = Field(default="local", description="where evaluations run")
    confirm: Literal["publish", "screen", "none"] = Field(
        default="publish", description="tier of the final check of the best program in fresh processes"
    )

    @field_validator("compute")
    @classmethod
    def _known_place(cls, value: str) -> str:
        try:
            return check_where(value)
        except StitchError as error:
            raise ValueError(str(error)) from None

    @field_validator("base_url")
    @classmethod
    def _no_credentials(cls, value: str | None) -> str | None:
        if value is not None:
            parts = urlsplit(value)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"base URL '{value}' is not an http(s) address")
            if parts.username or parts.password or parts.query:
                raise ValueError(
                    "the base URL carries credentials or a query, which would be written to disk; "
                    "put the key into the provider's environment variable (such as OPENAI_API_KEY) instead"
                )
        return value

    @property
    def free(self) -> bool:
        """The mind is model-free."""
        return self.model == RECIPES

    def limits(self) -> Limits:
        """The preset with the given overrides."""
        preset = RECIPE_LIMITS if self.free else _limits(PRESETS[self.budget])
        if self.agents != "full":
            preset = preset.model_copy(update={"iterations": ROUNDS[self.agents]})
        given: dict[str, Any] = {
            name: value
            for name in ("iterations", "seconds", "tokens", "usd")
            if (value := getattr(self, name)) is not None
        }
        return preset.model_copy(update=given)

    def counted(self, kind: Literal["cuda", "cpu"]) -> int:
        """Kernels of each profile whose hardware counters are read; recipes do not read them."""
        if self.counters is not None:
            return self.counters
        unseen = self.free or self.agents == "single" or "profile" in self.ablate
        return COUNTED if kind == "cuda" and not unseen else 0

    @property
    def looks_up(self) -> bool:
        """The knowledge base takes part; neither comparison system has one."""
        return self.knowledge and not self.free and self.agents == "full" and "knowledge" not in self.ablate

    @property
    def seeded(self) -> bool:
        """The recipes' best idea joins the first plan of a model."""
        return self.seeds and not self.free and self.agents == "full" and "recipes" not in self.ablate

    @property
    def chain(self) -> bool:
        """One program is changed round after round, whatever it does: every round is a candidate."""
        return self.agents == "coder-judge"

    def ideas_kept(self) -> int:
        """How many branches survive a round."""
        if self.agents != "full":
            return 1
        return self.beam or (4 if self.free else PRESETS[self.budget].ideas)

    def drafts_per_idea(self) -> int:
        """How many drafts of an idea are written independently."""
        if self.chain:
            return 1
        if self.agents == "single":
            return self.limits().iterations or 1
        return self.drafts or (1 if self.free else PRESETS[self.budget].drafts)

    def turns_at_once(self) -> int:
        """How many branches are worked on side by side; what is slow and waits for others is a model's reply."""
        return self.parallel or (1 if self.free else self.ideas_kept() * self.drafts_per_idea() + self.seeded)

    def plans_after_first(self) -> int:
        """How often the Planner may be asked again."""
        if self.agents != "full":
            return 0
        return self.replans if self.replans is not None else (0 if self.free else 2)

    def to_toml(self) -> str:
        """The fields that are set, one a line, each with its description above it."""
        lines = ["# Settings of this run, as it began. Changing them here has no effect on a run that has begun."]
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if value is not None:
                lines += [f"# {field.description}", f"{name} = {_toml(value)}"]
        return "\n".join(lines) + "\n"

    @classmethod
    def checked(cls, **values: Any) -> RunConfig:
        """Build from command-line values. Raises StitchError with one sentence when they are not usable."""
        try:
            config = cls(**values)
        except ValidationError as error:
            raise StitchError(_sentence(error, OPTIONS)) from None
        idle = [name for name in FOR_A_MODEL if getattr(config, name) is not None]
        if config.free and (config.agents != "full" or config.ablate):
            raise StitchError(
                "--agents and --ablate arrange a language model's roles and have no effect on recipes; "
                "name a model with --model."
            )
        if config.agents != "full" and config.ablate:
            raise StitchError(
                f"--ablate switches off parts of the full loop; --agents {config.agents} has none of them."
            )
        if config.free and idle:
            raise StitchError(
                f"--{idle[0].replace('_', '-')} has no effect on recipes; name the model of all roles with --model."
            )
        return config

    @classmethod
    def read(cls, path: Path) -> RunConfig:
        """Read ``config.toml``. Raises RunError when it is missing or not valid."""
        try:
            return cls.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise RunError(f"{path.parent} is not a run: it has no {path.name}.") from None
        except ValidationError as error:
            raise RunError(f"{path}: {_sentence(error)}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{path} is not valid TOML: {error}") from None


OPTIONS = {"usd": "budget_usd", "from_program": "from"}
"""Of settings, what the command line calls otherwise."""


def _sentence(error: ValidationError, names: dict[str, str] | None = None) -> str:
    first = error.errors()[0]
    field = str(first["loc"][0]) if first["loc"] else ""
    where = (names or {}).get(field, field).replace("_", "-")
    message = f"{first['msg'].removeprefix('Value error, ')}."
    return f"{where}: {message}" if where else message


def _toml(value: str | bool | int | float | list[str]) -> str:
    """A TOML value; JSON's strings are TOML basic strings once DEL is escaped."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def _limits(budget: Budget) -> Limits:
    return Limits(iterations=budget.candidates, seconds=budget.seconds, tokens=budget.tokens, usd=budget.usd)
