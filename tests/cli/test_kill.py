"""``kill -9`` at random moments: the run ends as if it had not been disturbed, and no paid request is repeated but the
one in flight at each kill."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.world import GOOD, OTHER, RAISES, WRONG, attempts, command, environment, script, stitchcuda, the_run
from tests.cli.world import QUICK as SMALL
from tests.support.scripted_endpoint import ScriptedEndpoint

KILLS = 10
IDEAS = {"in place": [WRONG, GOOD], "clamp": [RAISES, OTHER]}
QUICK = (*SMALL, "--confirm", "none", "--no-live")


@pytest.mark.timeout(600)
def test_ten_kills_change_nothing_but_the_time(
    home: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    undisturbed = tmp_path_factory.mktemp("undisturbed")
    with ScriptedEndpoint(script(ideas=IDEAS)) as endpoint:
        model = ("--model", "openai:scripted", "--base-url", endpoint.base_url)
        done = stitchcuda("optimize", home / "small.py", *model, *QUICK, cache=cache, cwd=undisturbed)
        assert done.returncode == 0, done.stdout + done.stderr
        asked = endpoint.count

    draw = random.Random(20)
    with ScriptedEndpoint(script(ideas=IDEAS)) as endpoint:
        model = ("--model", "openai:scripted", "--base-url", endpoint.base_url)
        start = command("optimize", home / "small.py", *model, *QUICK)
        kills = 0
        while kills < KILLS:
            begun = (home / "runs").is_dir()
            line = command("runs", "resume", "last", "--no-live") if begun else start
            process = subprocess.Popen(
                line, cwd=home, env=environment(cache), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            if not begun:
                while not list(home.glob("runs/*/journal.jsonl")):
                    assert process.poll() is None, "ended before the run began"
                    time.sleep(0.01)
            time.sleep(draw.uniform(0.3, 4.0))
            if process.poll() is not None:
                break
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        done = stitchcuda("runs", "resume", "last", "--no-live", cache=cache, cwd=home)
        assert done.returncode == 0, done.stdout + done.stderr
        counts = Counter(request.digest for request in endpoint.requests)

    assert kills >= 5, "the run was over before it was disturbed enough"
    assert attempts(the_run(home)) == attempts(the_run(undisturbed))
    assert len(counts) == asked, "a resumed run asked something else"
    in_flight = len(IDEAS)  # both are worked on at the same time
    assert sum(counts.values()) - asked <= kills * in_flight, "more was asked again than could be in flight"
