"""What fused kernels must get exactly right: integers that wrap, and bits that the sanitizer looks at."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from stitchcuda.evaluation.build_tools import SANITIZERS
from stitchcuda.recipes.lower import prelude
from tests.recipes.emulation import emulated
from tests.recipes.support import loaded, make_task, model_source, twins, written

NARROW = {
    "a narrow cast": "y = (a * 100).to(torch.int8)\nreturn y.float() * 0.5, (y + y).float() + 1",
    "unsigned": "y = (a * 100).int().to(torch.uint8)\nreturn (y + 200).float() * 0.5, (y * y > 9).float() - a",
    "sixteen bits": "y = (a * 20000).to(torch.int32).to(torch.int16)\nreturn (-(y * 3)).float() * 0.5",
}


@pytest.mark.parametrize("forward", NARROW.values(), ids=NARROW.keys())
def test_narrow_integers_wrap_as_they_do_in_eager(cache: Path, forward: str) -> None:
    task = make_task(model_source(forward, [(33, 70)]))
    program = written(task, ["pointwise"])
    assert program.manifest is not None
    with loaded(program, task, cache) as module, torch.no_grad():
        model, new, _ = twins(module, task)
        a = torch.linspace(-3, 3, 33 * 70).reshape(33, 70)
        torch.testing.assert_close(new(a), model(a), rtol=0, atol=0)


def test_narrow_integers_wrap_on_cuda_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(model_source(NARROW["a narrow cast"], [(33, 72)]), "cuda")
    program = emulated(task, ["pointwise"], tmp_path, monkeypatch)
    assert "int8_t" in program.files["fused.cu"]


MAIN = """
#include <cstdio>
int main() {
  double worst = 0;
  for (uint64_t raw = 0; raw < 0x100000000ull; raw += 4099) {
    const float x = own::bits<float>(static_cast<uint32_t>(raw));
    const float one = own::log(x), two = own::exp(x), three = own::tanh(x), four = own::log1p(x), five = own::erf(x);
    const bool odd = x != x;
    if (odd != (two != two) || odd != (three != three) || odd != (five != five)) return 1;
    if ((one != one) != (odd || x < 0) || (four != four) != (odd || x < -1)) return 2;
    if (x > 0 && x <= 3.40282347e+38f) {
      const double exact = std::log(static_cast<double>(x));
      const double error = std::abs(one - exact) / (std::abs(exact) + 1e-3);
      worst = error > worst ? error : worst;
    }
  }
  std::printf("%g\\n", worst);
  return worst < 1e-6 ? 0 : 3;
}
"""


def test_the_scalar_functions_are_clean_under_the_sanitizer_for_every_kind_of_float(tmp_path: Path) -> None:
    source, program = tmp_path / "sweep.cpp", tmp_path / "sweep"
    source.write_text(prelude("cpu") + MAIN)
    command = ["g++", "-std=c++17", "-O1", "-w", *SANITIZERS, "-o", str(program), str(source)]
    subprocess.run(command, check=True, timeout=120)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-1000:] + done.stdout
