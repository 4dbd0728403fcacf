"""Static rules over Python: what has no honest use is rejected with its line, whatever it is dressed as; honest code
that looks alike is not."""

from __future__ import annotations

import time

import pytest

from stitchcuda.evaluation.integrity.rules import RULES
from tests.evaluation.integrity.support import forward, inspected, rejected

MODULE = "import torch\nclass M(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("import torch\ntorch.cuda.Event.elapsed_time = lambda a, b: 0.0", "patches_timer"),
        ("import torch\nsetattr(torch.cuda, 'synch' + 'ronize', print)", "patches_timer"),
        ("from torch import cuda as c\nE = getattr(c, 'Ev' 'ent')\nE.record = print", "patches_timer"),
        ("import time as t\nt.perf_counter = lambda: 0", "patches_timer"),
        ("t = __import__('time')\nt.__dict__['mono' + 'tonic'] = id", "patches_timer"),
        ("import importlib\nvars(importlib.import_module('time'))['time'] = id", "patches_timer"),
        ("import sys\nsys.modules['time'].perf_counter_ns = id", "patches_timer"),
        ("import operator, torch\noperator.attrgetter('cuda.Event')(torch).elapsed_time = id", "patches_timer"),
        ("import torch\ntorch.allclose = lambda *a, **k: True", "patches_framework"),
        ("import torch\ntype(torch.ones(1)).__eq__ = id", "patches_framework"),
        ("import torch\ntorch.ones(1).__class__.sum = id", "patches_framework"),
        ("import torch.nn.functional as F\nF.relu = id", "patches_framework"),
        ("from torch import nn\nnn.Module.__call__ = id", "patches_framework"),
        ("import sys\nsys.modules['torch.testing'] = None", "patches_framework"),
        ("import builtins\nbuiltins.abs = id", "patches_framework"),
        ("from unittest import mock\nmock.patch('torch.equal', id).start()", "patches_framework"),
        ("import sys\nf = sys._getframe(1)", "walks_frames"),
        ("from sys import _getframe as g", "walks_frames"),
        ("import gc\nfor o in gc.get_objects(): pass", "walks_frames"),
        ("import inspect\nx = getattr(inspect, 'st' + 'ack')()", "walks_frames"),
        ("try:\n    1 / 0\nexcept Exception as e:\n    f = e.__traceback__.tb_frame", "walks_frames"),
        ("m = open(f'/proc/{1}/mem', 'wb')", "reads_process_memory"),
        ("import os\np = os.path.join('/proc/self', 'x')\nq = '/proc/self/' + 'mem'", "reads_process_memory"),
        ("import os\nfor fd in range(3, 64):\n    os.write(fd, b'ok')", "writes_descriptors"),
        ("import os\nos.dup2(1, 7)", "writes_descriptors"),
        ("f = open(5, 'w')", "writes_descriptors"),
        ("import os\nos._exit(0)", "ends_process"),
        ("import os\nos.kill(os.getppid(), 9)", "ends_process"),
        ("import base64\nexec(base64.b64decode('cGFzcw=='))", "executes_hidden_code"),
        ("exec(''.join(chr(c) for c in [112, 97, 115, 115]))", "executes_hidden_code"),
        ("import codecs\neval(codecs.decode('cevag', 'rot13'))", "executes_hidden_code"),
        ("import marshal, base64\nmarshal.loads(base64.b64decode(open(__file__).read()))", "executes_hidden_code"),
        ("exec('import os\\nos._exit(0)')", "ends_process"),
        ("class ModelNew(Model): pass", "reads_reference"),
        ("y = get_inputs()", "reads_reference"),
        ("from reference import Model", "reads_reference"),
        ("import subprocess\nsubprocess.run(['pip', 'install', 'flash-attn'])", "installs_packages"),
        ("import urllib.request\nurllib.request.urlopen('http://x')", "uses_network"),
        ("import socket\nsocket.create_connection(('x', 1))", "uses_network"),
        ("from torch.overrides import TorchFunctionMode\nclass M(TorchFunctionMode): pass", "intercepts_operators"),
        ("def f(x):\n    kind = type(x)\n    setattr(kind, 'upc'[::-1], print)", "patches_framework"),
        ("def f(x):\n    x.__class__.detach = print", "patches_framework"),
        ("def f(x):\n    type.__setattr__(type(x), input(), print)", "patches_framework"),
        ("import torch\nf = torch.compile(lambda x: x)", "stock_compiler"),
        (f"{MODULE}        self.compile()", "stock_compiler"),
        (f"{MODULE}        self.inner = torch.nn.Linear(2, 2)\n        self.inner.compile()", "stock_compiler"),
        (f"{MODULE}        self.inner = M()\n        self.inner.compile()", "stock_compiler"),
        ("import __main__", "enters_harness"),
        ("import sys\nsys.modules['__main__'].x = 1", "enters_harness"),
        ("import stitchcuda.evaluation.runner", "enters_harness"),
        ("import ctypes\nctypes.CDLL(None).ptrace(0)", "controls_process"),
        ("import ctypes\nlibc = ctypes.CDLL('libc.so.6')\nlibc.mprotect(0, 1, 7)", "patches_code"),
        ("load_inline(extra_cflags=['-fplugin=./x.so'])", "build_flags"),
        ("import threading\ndef f():\n    while True: g()\nthreading.Thread(target=f, daemon=True)", "endless_thread"),
        ("import ctypes\nctypes.c_void_p.from_address(id(print) + 16).value = 1", "patches_code"),
        ("import glob\npaths = glob.glob('/dev/shm/**')", "searches_memory"),
        ("import glob\npaths = glob.glob('/proc/*/fd/*')", "searches_memory"),
    ],
)
def test_what_has_no_honest_use_is_rejected_with_its_line(source: str, rule: str) -> None:
    found = inspected(source)
    assert rule in rejected(found), found
    last = len(source.splitlines())
    assert any(f"program.py:{line}" in found[rule].evidence for line in range(1, last + 1))
    assert found[rule].layer == "static"


def test_a_tensor_that_answers_for_itself_ends_the_process_or_leaves_is_seen() -> None:
    assert "ends_process" in rejected(inspected(forward("import sys\nsys.exit(0)")))
    assert "ends_process" in rejected(inspected(forward("raise SystemExit")))
    lazy = "y = torch.empty_like(x)\nsetattr(y, 'cpu', lambda: x)\nreturn y"
    assert "tensor_subclass" in inspected(forward(lazy))
    assert "lazy_answer" in rejected(inspected(forward(lazy)))


@pytest.mark.parametrize("method", ["__torch_function__", "__torch_dispatch__", "cpu"])
def test_a_tensor_class_that_computes_when_it_is_looked_at_is_rejected_where_a_call_makes_one(method: str) -> None:
    lazy = f"import torch\nclass Lazy(torch.Tensor):\n    def {method}(self, *given): return g(self)\n"
    assert rejected(inspected(lazy + forward("return Lazy(x)"))) == {"lazy_answer"}
    assert rejected(inspected(lazy + forward("return g(x)"))) == set()


@pytest.mark.parametrize(
    "source",
    [
        '"""A two-pass kernel: single pass, except for torch.cuda.Event.elapsed_time = 0 and os._exit(0)."""',
        "try:\n    import triton\nexcept ImportError:\n    triton = None",
        "import torch\ntorch.backends.cuda.matmul.allow_tf32 = False",
        "from torch import nn\nl = nn.Linear(2, 2)\nl.weight = nn.Parameter(l.weight * 2)\nsetattr(l, 'bias', None)",
        "import time\nstart = time.perf_counter()\nprint(time.perf_counter() - start)",
        "import os\nos.environ.setdefault('TORCH_CUDA_ARCH_LIST', '9.0')",
        "from pathlib import Path\nsource = (Path(__file__).parent / 'kernels.cu').read_text()",
        "import os, tempfile\nfd, path = tempfile.mkstemp()\nos.write(fd, b'x')\nwith os.fdopen(fd, 'w') as f: pass",
        "import os\nr, w = os.pipe()\nos.write(w, b'x')",
        "import gc\ngc.collect()",
        "import threading\ndef f():\n    while True: work(orders.get())\nthreading.Thread(target=f, daemon=True)",
        "import threading\ndef f():\n    while not done: g()\nthreading.Thread(target=f)",
        "import ctypes\nctypes.c_int.from_address(buffer.data_ptr()).value = 1\nkey = id(buffer)",
        "import torch\nraise RuntimeError('make /dev/shm larger')",
        "import sys\nhave = 'triton' in sys.modules\nme = sys.modules[__name__]\nprint('x', file=sys.stderr)",
        "class Model: pass\nclass Other(Model): pass",
        "def get_inputs(): return []\nif __name__ == '__main__':\n    import os\n    get_inputs()\n    os._exit(0)",
        "value = eval('1 + 1')",
        "class time: pass\ntime.perf_counter = 1",
        "cores = open('/proc/cpuinfo').read().count('processor')",
        "class A:\n    def f(self):\n        type(self).cache = {}\n        self.__class__.view = 1",
        "def f(x):\n    kind = type(x)\n    kind.marker = 1",
        "import socket\na, b = socket.socketpair()",
        "import inspect\nname = inspect.signature(print)",
        "import torch\ntorch.ops.load_library('x')\ntorch.library.define('a::b', '() -> ()')",
        "import numpy as np\na = np.zeros(3)\na.shape = (3, 1)",
        "import random\nrandom.choice([1])",
        f"{MODULE}        self.kernel = own.Kernel()\n        self.kernel.compile()",
        f"{MODULE}        self.compile()\n    def compile(self):\n        pass",
        "class Kernel(Base):\n    def run(self):\n        self.compile()",
        "load_inline(extra_ldflags=['-Wl,-rpath,/usr/local/cuda/lib64', '-lcublas'], extra_include_paths=['/opt/x'])",
        "text = '__global__ void k() { /* kill(0, 9) */ }  // _exit(0)'",
    ],
)
def test_honest_code_that_looks_alike_is_not_rejected(source: str) -> None:
    assert rejected(inspected(source)) == set()


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("import torch\nimport triton\nf = torch.compile(lambda x: x)", "compiler_wrap"),
        ("import torch\ntorch.manual_seed(42)", "fixed_seed"),
        ("import torch\ng = torch.Generator()\ng.manual_seed(1)", "fixed_seed"),
        ("import torch\ntorch.backends.cuda.matmul.allow_tf32 = True", "precision_switch"),
        ("import torch\ntorch.set_float32_matmul_precision('high')", "precision_switch"),
        ("import threading\nthreading.Thread(target=print).start()", "background_work"),
        ("import flash_attn", "foreign_library"),
        ("import torch\nclass T(torch.Tensor): pass", "tensor_subclass"),
        ("import atexit\natexit.register(print)", "runs_later"),
        ("import sys\nprint(sys.argv)", "inspects_process"),
        ("import torch\nwith torch.profiler.profile() as p: pass", "profiles_itself"),
        ("import torch\ntorch.save(1, 'x')", "writes_files"),
        ("x = open('/data/answers.bin', 'rb').read()", "reads_files"),
        ("load_inline(extra_cuda_cflags=['-O3', '--use_fast_math'])", "fast_math"),
        ("import importlib\nimportlib.import_module(input())", "dynamic_import"),
        ("import ctypes\nctypes.CDLL('libcuda.so.1').cuCtxSetLimit(which, 1)", "persisting_l2"),
        ("import torch\nside = torch.cuda.Stream()", "side_stream"),
    ],
)
def test_what_is_worth_knowing_is_flagged(source: str, rule: str) -> None:
    found = inspected(source)
    assert found[rule].severity == "flag"
    assert rejected(found) == set()


def test_precision_is_not_worth_a_word_in_classes_that_allow_it() -> None:
    source = "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True\nload_inline(extra_cflags=['-ffast-math'])"
    assert {"precision_switch", "fast_math"} <= set(inspected(source))
    assert not {"precision_switch", "fast_math"} & set(inspected(source, "tf32"))


def test_a_finding_names_its_places_and_counts_the_rest() -> None:
    found = inspected("import os\n" + "os._exit(0)\n" * 5)["ends_process"]
    assert found.evidence.startswith(RULES["ends_process"].says)
    assert "program.py:2: os._exit; program.py:3: os._exit; program.py:4: os._exit and 2 more" in found.evidence


def test_its_own_modules_are_nobodys_secret() -> None:
    assert rejected(inspected("import reference\nimport task", reference_py="x = 1", task_py="y = 2")) == set()


def test_what_does_not_parse_or_nests_without_end_is_left_to_the_build() -> None:
    assert rejected(inspected("def broken(:")) == set()
    assert rejected(inspected("x = " + "(" * 150 + "1" + ")" * 150)) == set()


def test_deep_expressions_blind_no_other_rule() -> None:
    deep = forward("y = " + "+".join(["x"] * 800) + "\nz = " + "(" * 90 + "x" + ")" * 90 + "\nreturn y")
    found = inspected(deep + "\nimport os\nos._exit(0)\nq = " + "+".join(["1"] * 2000))
    assert "ends_process" in rejected(found)


def test_calls_of_what_a_call_gave_are_followed_in_a_time_that_grows_with_their_number() -> None:
    began = time.process_time()
    assert "ends_process" in rejected(
        inspected(forward("y = x" + "(x)" * 140 + "\nreturn y") + "\nimport os\nos._exit(0)")
    )
    assert time.process_time() - began < 5
