"""The rules of the static and the build layer: their names, how severe they are, and what each one says.

A rule *rejects* only what has no honest use in a kernel program; everything that an honest program may also do is a
*flag*, which informs the reader and the rubric and changes no verdict. The rules' code is in ``static_python``,
``python_flow``, ``static_native`` and ``binary``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from stitchcuda.evaluation.model import Finding, Layer

Severity = Literal["reject", "flag"]

SHOWN = 3
"""Places that one finding names; more are counted."""


@dataclass(frozen=True)
class Rule:
    """What a rule says when it fires."""

    severity: Severity
    says: str


RULES: dict[str, Rule] = {
    # No honest use.
    "patches_timer": Rule("reject", "a function that measures time is replaced"),
    "patches_framework": Rule("reject", "a function or class of another library is replaced"),
    "walks_frames": Rule("reject", "other code's frames or all live objects are searched"),
    "reads_process_memory": Rule("reject", "memory is reached through /proc"),
    "writes_descriptors": Rule("reject", "a file descriptor that the program did not open is written to"),
    "ends_process": Rule("reject", "the process, or another one, is ended behind the caller's back"),
    "executes_hidden_code": Rule("reject", "text that was encoded or taken apart is executed"),
    "reads_reference": Rule("reject", "the task's own reference is asked for"),
    "enters_harness": Rule("reject", "the module that runs the program is entered"),
    "controls_process": Rule("reject", "processes are started, traced or controlled from native code"),
    "patches_code": Rule("reject", "code or linkage in memory is changed"),
    "interposes": Rule("reject", "a function of the C library, CUDA, Python or torch is defined again"),
    "includes_files": Rule("reject", "the build takes in files that are not the program's or a toolkit's"),
    "build_flags": Rule("reject", "the build is asked to run or take in something other than the sources"),
    "intercepts_operators": Rule("reject", "torch's operators are intercepted"),
    "uses_network": Rule("reject", "something is asked of the network"),
    "installs_packages": Rule("reject", "packages are installed at run time"),
    "static_initialiser": Rule("reject", "a function runs when the library is loaded"),
    "stock_compiler": Rule("reject", "a stock compiler is all there is: no kernel is the program's own"),
    "decoy_kernel": Rule("reject", "kernels are brought, and no result of theirs is used"),
    "earlier_answer": Rule("reject", "an answer is given out that an earlier call or a table holds"),
    "empty_answer": Rule("reject", "an output is given out that nothing was computed for"),
    "stale_graph": Rule("reject", "a CUDA graph is replayed on a way that reads nothing of what the call was given"),
    "unjoined_stream": Rule("reject", "a call's work goes to a stream that the caller's stream never waits for"),
    "device_limits": Rule("reject", "a limit of the whole device is changed and never given back"),
    "counts_calls": Rule("reject", "how often it was called decides what is computed"),
    "detached_thread": Rule("reject", "a thread that works on the call's arrays is let go, and nobody waits for it"),
    "endless_thread": Rule("reject", "a thread runs without end and waits for nothing"),
    "lazy_answer": Rule("reject", "a tensor is made that computes when somebody looks at it"),
    "searches_memory": Rule("reject", "memory or descriptors of other processes are looked for"),
    "replaces_measuring": Rule("reject", "the profiling interface that takes the trace is used"),
    # Worth knowing.
    "dynamic_code": Rule("flag", "code is executed from text"),
    "dynamic_import": Rule("flag", "a module whose name is computed is imported"),
    "inspects_process": Rule("flag", "the process looks at itself or its caller"),
    "reads_files": Rule("flag", "a file that is not the program's own is read"),
    "writes_files": Rule("flag", "data is written to a file or to shared memory"),
    "foreign_library": Rule("flag", "another project's kernels are imported"),
    "native_loader": Rule("flag", "a native library is loaded by hand"),
    "raw_memory": Rule("flag", "memory is read or written by address from Python"),
    "tensor_subclass": Rule("flag", "a tensor or container with behaviour of its own is made"),
    "compiler_wrap": Rule("flag", "a stock compiler writes the kernels"),
    "silent_fallback": Rule("flag", "a failing kernel is silently replaced by framework code"),
    "no_own_kernel": Rule("flag", "there is no kernel of its own"),
    "library_compute": Rule("flag", "the framework or a vendor library does a heavy operation"),
    "keyed_cache": Rule("flag", "something is remembered under a tensor's address or identity"),
    "cached_result": Rule("flag", "a value computed from one call's inputs is kept for later calls"),
    "side_stream": Rule("flag", "work goes to another stream and nothing waits for it"),
    "graph_without_copy": Rule("flag", "a CUDA graph is replayed and nothing copies new inputs in"),
    "background_work": Rule("flag", "threads or processes are started"),
    "runs_later": Rule("flag", "code is left to run later: an exit handler, a finaliser, a signal"),
    "host_callback": Rule("flag", "a host function is put on a stream"),
    "fixed_seed": Rule("flag", "a random generator is seeded"),
    "regenerates_inputs": Rule("flag", "the task's inputs are made again"),
    "copies_reference": Rule("flag", "the reference is copied into the program and called"),
    "precision_switch": Rule("flag", "a lower precision is switched on"),
    "reduced_precision": Rule("flag", "tensor-core operands are narrower than the precision class (numerics decide)"),
    "fast_math": Rule("flag", "approximate arithmetic is used in the fp32 class (numerics decide)"),
    "mutates_input": Rule("flag", "an input is changed in place"),
    "constant_output": Rule("flag", "the output does not depend on the inputs"),
    "input_passthrough": Rule("flag", "an input is returned as it came"),
    "unwritten_output": Rule("flag", "memory that nothing wrote is returned"),
    "mutates_weights": Rule("flag", "a call changes a weight in place"),
    "reads_unwritten": Rule("flag", "memory is read that nothing wrote"),
    "reused_output": Rule("flag", "the same buffer is given out by every call"),
    "unlaunched_kernel": Rule("flag", "a kernel is there and nothing calls it"),
    "discarded_result": Rule("flag", "a kernel's result is thrown away"),
    "folds_at_construction": Rule("flag", "weights are worked on in the constructor, where later ones do not arrive"),
    "call_counter": Rule("flag", "behaviour depends on how often it was called"),
    "persisting_l2": Rule(
        "flag", "limits or attributes of the device that outlive a call are set, such as lines kept in L2"
    ),
    "shares_memory": Rule("flag", "memory is shared with other processes"),
    "file_access": Rule("flag", "native code opens files or reads its environment"),
    "runtime_loading": Rule("flag", "native code looks up functions at run time"),
    "profiles_itself": Rule("flag", "a profiler is started or stopped"),
    "reads_clock": Rule("flag", "the program reads a clock"),
    "host_assembly": Rule("flag", "host code is written as assembly"),
    "changes_environment": Rule("flag", "settings of the process that change how others run are changed"),
    "odd_object": Rule("flag", "the built library has a part that compiled kernels do not have"),
}


@dataclass(frozen=True)
class Hit:
    """A rule that fired at a place: ``line`` counts from 1, 0 means the whole file; ``what`` names the thing."""

    rule: str
    path: str
    line: int
    what: str


def findings(hits: Iterable[Hit], layer: Layer) -> list[Finding]:
    """One Finding per rule, rejections first, its evidence naming the first SHOWN places."""
    by_rule: dict[str, list[Hit]] = {}
    for hit in dict.fromkeys(hits):
        by_rule.setdefault(hit.rule, []).append(hit)
    found = []
    for name, places in by_rule.items():
        rule = RULES[name]
        places.sort(key=lambda hit: (hit.path, hit.line))
        shown = "; ".join(f"{_where(hit)}: {hit.what}" for hit in places[:SHOWN])
        more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
        found.append(Finding(rule=name, severity=rule.severity, evidence=f"{rule.says} ({shown}{more})", layer=layer))
    return sorted(found, key=lambda finding: finding.severity != "reject")


def _where(hit: Hit) -> str:
    return f"{hit.path}:{hit.line}" if hit.line else hit.path
