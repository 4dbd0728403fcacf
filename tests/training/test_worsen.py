"""Programs made worse: each fault changes the kernels it names, and a reply can stand for the way back."""

from __future__ import annotations

from typing import Literal

import pytest

from stitchcuda.agents.reading import read_program
from stitchcuda.program.model import Program
from stitchcuda.recipes.emit_cpu import CHUNK
from stitchcuda.training.reply import reply_of
from stitchcuda.training.worsen import FAULTS, worsened
from tests.recipes.support import make_task, model_source, written

Kind = Literal["cpu", "cuda"]
SOURCE = model_source(
    "a = F.layer_norm(torch.relu(a * b + 1.0) * a, (640,))\nreturn F.softmax(a - b, dim=-1)", [(512, 640)] * 2
)


@pytest.fixture(scope="module")
def programs() -> dict[Kind, Program]:
    """What recipes write for both targets."""
    kinds: tuple[Kind, ...] = ("cpu", "cuda")
    return {kind: written(make_task(SOURCE, kind), ["pointwise", "row_reduction"]) for kind in kinds}


def native(program: Program) -> str:
    return next(text for path, text in program.files.items() if path.endswith((".cpp", ".cu")))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_faults_of_every_kind_apply_and_leave_the_prelude_alone(programs: dict[Kind, Program], kind: Kind) -> None:
    good = programs[kind]
    made = worsened(good, kind)
    assert {worse.kind for worse in made} == {"slower", "wrong", "broken"}
    assert len({worse.program.digest for worse in made} | {good.digest}) == len(made) + 1
    prelude = native(good).partition("}  // namespace own\n")[0]
    for worse in made:
        assert native(worse.program).startswith(prelude), worse.fault
        assert worse.program.manifest == good.manifest


def test_all_faults_are_seen_on_recipes_programs(programs: dict[Kind, Program]) -> None:
    seen = {worse.fault for kind, program in programs.items() for worse in worsened(program, kind)}
    assert {fault.name for fault in FAULTS} == seen


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_way_back_is_a_short_edit_that_reads_as_the_verified_program(
    programs: dict[Kind, Program], kind: Kind
) -> None:
    good = programs[kind]
    for worse in worsened(good, kind):
        reply = reply_of(good, worse.program, kind)
        assert "<<<<<<< SEARCH" in reply
        assert len(reply) < len(native(good)) / 2
        assert read_program(reply, worse.program, kind).digest == good.digest, worse.fault


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_program_from_scratch_is_whole_files(programs: dict[Kind, Program], kind: Kind) -> None:
    good = programs[kind].model_copy(update={"notes": ""})
    assert read_program(reply_of(good, None, kind), None, kind) == good


def test_work_is_doubled_only_where_a_second_time_gives_the_same(programs: dict[Kind, Program]) -> None:
    double = next(w for w in worsened(programs["cpu"], "cpu") if w.fault == "double_pass")
    assert "pass < 2 * int64_t(512)" in native(double.program)
    chunks = written(make_task(model_source("return torch.tanh(a) + 1", [(CHUNK * 8,)])), ["pointwise"])
    text = native(chunks).replace("const float* __restrict__ in0", "float* __restrict__ out1x")
    inplace = chunks.model_copy(update={"files": {**chunks.files, "fused.cpp": text.replace("own::load", "inout")}})
    assert "double_pass" not in {w.fault for w in worsened(inplace, "cpu")}
