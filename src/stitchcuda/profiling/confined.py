"""What runs in the confinement instead of the runner when a profiler is at work: lays files down, runs the commands,
hands back the files they wrote. Standard library only; ``sandbox`` loads it by path. It decides nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def _wire(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("stitchcuda_wire", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(words: list[str], seconds: float) -> int | None:
    """Exit code of a command, -N for signal N; None when time was up. Its whole group goes then."""
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait(max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def main(config: dict[str, Any]) -> None:
    """Run ``config['commands']`` in turn, as long as they end well; then hand back the outputs that are there."""
    wire, work = _wire(config["wire"]), Path(config["workdir"])
    wire.get_files(config["program_fd"], work)
    until, codes = time.monotonic() + config["timeout_s"], []
    for words in config["commands"]:
        codes.append(run(words, until - time.monotonic()))
        if codes[-1] != 0:
            break
    found = {}
    for name in config["outputs"]:
        path = work / name
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= config["limits"]["file_bytes"]:
            found[name] = path.read_bytes()
    found[config["status"]] = json.dumps({"codes": codes, "missing": config["missing"]}).encode()
    wire.put_files(config["arena_fd"], found)
