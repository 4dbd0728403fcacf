"""The Planner's data: a Plan holds distinct ideas, each a to-do list of Steps for the whole program."""

from __future__ import annotations

from pydantic import Field

from stitchcuda.agents.forms import Factor, Form, Sizes, Words


class TensorContract(Form):
    """What flows over a fusion boundary."""

    name: str
    shape: Sizes = Field(description="sizes; a name such as 'batch' where it may vary")
    dtype: str = "float32"
    layout: str = Field(default="contiguous", description="contiguous, channels_last, or strides in words")


class Step(Form):
    """One piece of work for the Coder, judged by its acceptance."""

    title: str
    operators: Words = Field(description="operators of the reference that this step covers")
    fusion: str = Field(description="the fusion boundary: what becomes one kernel, and why it ends there")
    inputs: list[TensorContract] = Field(default_factory=list)
    outputs: list[TensorContract] = Field(default_factory=list)
    host: str = Field(default="", description="host orchestration: what runs, is kept or is packed around the kernels")
    predicted_gain: Factor = Field(default=1.0, description="whole-program speedup expected once done")
    acceptance: str = Field(description="what must be seen to call it done")
    recipes: Words = Field(default_factory=list, description="names of recipes to apply; only recipes fill this")


class Idea(Form):
    """One distinct strategy; drafts of it are written and measured independently."""

    name: str
    rationale: str = Field(description="the evidence: time shares, gaps, bounds")
    risk: str = ""
    steps: list[Step] = Field(min_length=1)

    @property
    def by_recipes(self) -> bool:
        """Every step is a recipe's: it costs nothing to write, and comes out the same each time."""
        return all(step.recipes for step in self.steps)


class Plan(Form):
    """What the Planner answers. ``ideas`` are sorted by promise; none means 'no rewrite found' and why."""

    summary: str
    bottleneck: str = Field(description="the whole program's bottleneck, with its evidence")
    ideas: list[Idea] = Field(default_factory=list)
