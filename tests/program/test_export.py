"""Exports run where this package is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from stitchcuda.errors import ProgramError
from stitchcuda.evaluation.build_tools import find_nvcc
from stitchcuda.evaluation.integrity.inspect import inspect_program
from stitchcuda.program import compilers
from stitchcuda.program.export import to_kernelbench, to_package
from stitchcuda.program.model import Program
from stitchcuda.task.model import Target
from tests.program.samples import cpu_program, cuda_program

CHECK = """
import sys, torch
from {module} import ModelNew
assert not any(name.split(".")[0] in ("stitchcuda", "pydantic") for name in sys.modules)
x = torch.arange(16.0).reshape(2, 8)
with torch.no_grad():
    assert torch.equal(ModelNew(3.0)(x), x * 3 + 1)
    assert torch.equal(ModelNew(3.0)(x, False), x * 3)
for wrong in (x.double(), x.t()):
    try:
        ModelNew(3.0)(wrong)
    except (RuntimeError, ValueError):
        continue
    raise SystemExit("a wrong input was taken")
print("fine")
"""


def run_python(code: str, folder: Path, **variables: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


STRANGER = "import os, sys, torch, torch.profiler\nos.getuid() or os.setuid(65534)\nsys.dont_write_bytecode = True\n"
"""Goes on as a user who may not write where root may."""


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder that other users reach, which pytest's own are not, with ``tmp`` that they may write to."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="stitchcuda_test_") as name:
        (Path(name) / "tmp").mkdir()
        (Path(name) / "tmp").chmod(0o777)
        Path(name).chmod(0o755)
        yield Path(name)
        for path in [Path(name), *Path(name).rglob("*")]:
            path.chmod(0o777)


def close(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def test_a_package_builds_itself_on_first_import(tmp_path: Path) -> None:
    to_package(cpu_program(), tmp_path / "fast", title="A sample")
    assert run_python(CHECK.format(module="fast"), tmp_path) == "fine\n"
    libraries = list((tmp_path / "fast" / "build").glob("*.so"))
    assert len(libraries) == 1
    before = libraries[0].stat().st_mtime_ns
    run_python(CHECK.format(module="fast"), tmp_path)
    assert libraries[0].stat().st_mtime_ns == before
    assert "from fast import ModelNew" in (tmp_path / "fast" / "README.md").read_text()


def test_a_built_package_is_used_from_where_nothing_can_be_written_nor_compiled(elsewhere: Path) -> None:
    to_package(cpu_program(), elsewhere / "fast")
    run_python("import fast", elsewhere)
    close(elsewhere / "fast")
    check = STRANGER + CHECK.format(module="fast")
    assert run_python(check, elsewhere, PATH="/nowhere", TMPDIR=str(elsewhere / "tmp")) == "fine\n"
    assert list((elsewhere / "tmp").iterdir()) == []


def test_a_package_that_cannot_be_written_is_built_among_the_users_temporary_files(elsewhere: Path) -> None:
    to_package(cpu_program(), elsewhere / "fast")
    (elsewhere / "fast" / "build").mkdir()
    (elsewhere / "fast" / "build" / "lock").touch()
    close(elsewhere / "fast")
    check = STRANGER + CHECK.format(module="fast")
    assert run_python(check, elsewhere, TMPDIR=str(elsewhere / "tmp")) == "fine\n"
    (folder,) = (elsewhere / "tmp").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(path.suffix for path in folder.iterdir()) == ["", ".so"]
    assert run_python(check, elsewhere, TMPDIR=str(elsewhere / "tmp"), PATH="/nowhere") == "fine\n"


def test_a_library_that_others_could_have_put_there_is_not_loaded(elsewhere: Path) -> None:
    to_package(cpu_program(), elsewhere / "fast")
    close(elsewhere / "fast")
    uid = os.getuid() or 65534
    (elsewhere / "tmp" / f"stitchcuda_build_{uid}").mkdir()
    (elsewhere / "tmp" / f"stitchcuda_build_{uid}").chmod(0o777)
    code = f"{STRANGER}try:\n    import fast\nexcept ImportError as error:\n    print(error)"
    said = run_python(code, elsewhere, TMPDIR=str(elsewhere / "tmp"))
    assert "others can write to it" in said
    assert "set STITCHCUDA_BUILD" in said


MACHINES = {
    "CUDA_HOME": "home/bin/nvcc",
    "CUDA_PATH": "path/bin/nvcc",
    "on PATH": "bin/nvcc",
    "usual folder": "opt/bin/nvcc",
    "wheels": "site/nvidia/cuda_nvcc/bin/nvcc",
}
"""Where nvcc is first found, while all later ones are there too."""


@pytest.mark.parametrize("first", MACHINES)
def test_a_package_finds_the_compiler_that_the_evaluation_finds(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in list(MACHINES)[list(MACHINES).index(first) :]:
        (tmp_path / MACHINES[place]).parent.mkdir(parents=True)
        (tmp_path / MACHINES[place]).touch(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "path"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setattr(compilers, "CUDA_FOLDERS", (str(tmp_path / "opt"),))
    to_package(cuda_program(), tmp_path / "fast")
    carried: dict[str, Any] = {"__file__": str(tmp_path / "fast" / "bindings.py"), "__name__": "bindings"}
    bindings = (tmp_path / "fast" / "bindings.py").read_text()
    exec(bindings.partition("_library_path = ")[0], carried)
    carried["CUDA_FOLDERS"] = compilers.CUDA_FOLDERS
    assert carried["look_for_nvcc"]() == find_nvcc() == str(tmp_path / MACHINES[first])


@pytest.mark.skipif(compilers.look_for_nvcc() is None, reason="there is no nvcc")
def test_a_cuda_package_compiles_for_the_gpu_that_is_there(tmp_path: Path) -> None:
    to_package(cuda_program(), tmp_path / "fast")
    run_python("import torch\ntorch.cuda.get_device_capability = lambda: (9, 0)\nimport fast", tmp_path)
    (library,) = (tmp_path / "fast" / "build").glob("*.so")
    assert b"sm_90a" in library.read_bytes()


def test_a_package_is_built_with_what_there_is_where_cxx_names_no_compiler(tmp_path: Path) -> None:
    to_package(cpu_program(), tmp_path / "fast")
    assert run_python(CHECK.format(module="fast"), tmp_path, CXX="no-such-compiler") == "fine\n"


@pytest.mark.skipif(compilers.torch_openmp() is None, reason="this torch ships no OpenMP runtime")
def test_a_package_shares_torchs_pool_of_threads(tmp_path: Path) -> None:
    to_package(cpu_program(), tmp_path / "fast")
    loaded = "{path for path in open('/proc/self/maps').read().split() if 'libgomp' in path or 'libiomp' in path}"
    code = f"import torch, fast\ntorch.ones(10**6).exp()\nprint(len({loaded}))"
    assert run_python(code, tmp_path) == "1\n"


def test_torchs_openmp_runtime_may_lie_beside_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / "torch.libs" / "libgomp-a34b3233.so.1.0.0"
    for path in (tmp_path / "torch" / "__init__.py", runtime):
        path.parent.mkdir()
        path.touch()
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert compilers.torch_openmp.__wrapped__() == runtime


def test_a_package_with_helper_modules_keeps_their_imports(tmp_path: Path) -> None:
    files = {
        "program.py": "import torch\nimport helper\nfrom helper import two\n\n\n"
        "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x * two() * helper.two()\n",
        "helper.py": "def two():\n    from deep.more import TWO\n    return TWO\n",
        "deep/more.py": "import helper as h\nTWO = 2\n",
    }
    to_package(Program(files=files), tmp_path / "pure")
    assert "Needs PyTorch." in (tmp_path / "pure" / "README.md").read_text()
    files["program.py"] += "\n\ndef other():\n    import json, my_models.decoder\n"
    to_package(Program(files=files), tmp_path / "own")
    assert "Needs PyTorch and my_models." in (tmp_path / "own" / "README.md").read_text()
    code = "import torch\nfrom pure import ModelNew\nprint(ModelNew()(torch.ones(1)).item())"
    assert run_python(code, tmp_path) == "4.0\n"


def test_a_folder_in_use_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for replace in (False, True):
        with pytest.raises(ProgramError, match="not empty"):
            to_package(cpu_program(), tmp_path / "mine", replace=replace)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"


def test_an_earlier_package_is_replaced_whole_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "fast"
    to_package(cpu_program(), folder)
    (folder / "build").mkdir()
    with pytest.raises(ProgramError, match="not empty"):
        to_package(cpu_program(), folder)
    to_package(Program(files={"program.py": "class ModelNew:\n    pass\n"}), folder, replace=True)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "__init__.py", "program.py"]


@pytest.mark.parametrize("name", ["faster-model", "2x", "class"])
def test_a_package_has_a_name_that_python_can_import(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProgramError, match="cannot be imported"):
        to_package(cpu_program(), tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_single_python_file_is_exported_as_it_is() -> None:
    text = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
    assert to_kernelbench(Program(files={"program.py": text})) == text


def test_helper_modules_travel_inside_the_single_file(tmp_path: Path) -> None:
    files = {
        "program.py": "from __future__ import annotations\nimport torch\nfrom helper import two\n\n\n"
        "class ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x * two()\n",
        "helper.py": "import base\n\n\ndef two():\n    return base.TWO\n",
        "base.py": "TWO = 2  # '''\n",
    }
    (tmp_path / "single.py").write_text(to_kernelbench(Program(files=files)))
    code = "import torch\nfrom single import ModelNew\nprint(ModelNew()(torch.ones(1)).item())"
    assert run_python(code, tmp_path) == "2.0\n"


def test_python_files_in_a_circle_are_refused() -> None:
    entry = "import torch\nimport a\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
    with pytest.raises(ProgramError, match="in a circle"):
        to_kernelbench(Program(files={"program.py": entry, "a.py": "import b\n", "b.py": "import a\n"}))


def test_a_cuda_export_holds_wrapper_sources_and_entry() -> None:
    text = to_kernelbench(cuda_program())
    compile(text, "export.py", "exec")
    for part in ("load_inline", "getCurrentCUDAStream", "CUDAGuard", "scale_shift_kernel<<<", "class ModelNew"):
        assert part in text
    assert '#include "common.h"' not in text
    assert text.startswith("from __future__ import annotations\n")


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_an_export_is_no_cheat_to_the_evaluation(kind: Literal["cpu", "cuda"]) -> None:
    program = cpu_program() if kind == "cpu" else cuda_program()
    single = Program(files={"program.py": to_kernelbench(program)})
    target = Target(kind=kind, arch="native" if kind == "cpu" else "sm_90")
    assert [f for f in inspect_program(single, target, "fp32") if f.severity == "reject"] == []


SEVERAL = cpu_program().model_copy(
    update={"files": {**cpu_program().files, "other.cpp": '#include "common.h"\nstatic int unused;\n'}}
)


@pytest.mark.skipif(
    not os.environ.get("STITCHCUDA_SLOW"), reason="torch's C++ headers take minutes; set STITCHCUDA_SLOW=1"
)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", [cpu_program(), SEVERAL], ids=["one source", "several sources"])
def test_a_cpu_export_compiles_and_runs(tmp_path: Path, program: Program) -> None:
    (tmp_path / "single.py").write_text(to_kernelbench(program))
    assert run_python(CHECK.format(module="single"), tmp_path).endswith("fine\n")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_cuda_exports_compile_and_run(tmp_path: Path) -> None:
    to_package(cuda_program(), tmp_path / "fast")
    (tmp_path / "single.py").write_text(to_kernelbench(cuda_program()))
    for module in ("fast", "single"):
        code = CHECK.format(module=module).replace(
            "import sys, torch", "import sys, torch; torch.set_default_device('cuda')"
        )
        assert run_python(code, tmp_path).endswith("fine\n")
