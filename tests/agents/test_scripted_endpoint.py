"""The scripted endpoint itself, as its own process: rules, repeats, faults and the log that other processes count."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.scripted_endpoint import read_log

ROOT = Path(__file__).parents[2]
SCRIPT = {
    "rules": [
        {"tool": "plan", "answers": [{"tool": {"summary": "s"}}]},
        {"contains": ["draft", "two"], "answers": [{"text": "both words"}]},
        {"contains": "draft", "plain": True, "answers": [{"status": 429}, {"text": "first"}, {"text": "second"}]},
        {"contains": "drop", "answers": [{"drop": True}]},
    ]
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    script, log = tmp_path / "script.json", tmp_path / "log.jsonl"
    script.write_text(json.dumps(SCRIPT))
    command = [sys.executable, "-m", "tests.support.scripted_endpoint", "--script", str(script), "--log", str(log)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), log
        process.kill()


def ask(url: str, words: str, *, tools: list[str] | None = None) -> str:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": words}],
        "tools": [{"type": "function", "function": {"name": name}} for name in tools or []],
    }
    request = urllib.request.Request(
        f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "text/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as reply:
        message = json.loads(reply.read())["choices"][0]["message"]
    return str(message.get("tool_calls") or message["content"])


def test_equal_requests_get_equal_answers_new_ones_the_next_and_faults_pass(server: tuple[str, Path]) -> None:
    url, log = server
    with pytest.raises(urllib.error.HTTPError, match="429"):
        ask(url, "draft a")
    assert [ask(url, words) for words in ("draft a", "draft a", "draft b", "draft c")] == [
        "first",
        "first",
        "second",
        "second",
    ]
    assert ask(url, "two: draft") == "both words"
    assert "'name': 'plan'" in ask(url, "draft", tools=["plan"])
    with pytest.raises(urllib.error.HTTPError, match="500"):
        ask(url, "unheard of")
    with pytest.raises(ConnectionError):
        ask(url, "drop")
    logged = read_log(log)
    assert [entry["answer"] for entry in logged] == [
        "status",
        "text",
        "text",
        "text",
        "text",
        "text",
        "tool",
        "status",
        "drop",
    ]
    assert [entry["delivered"] for entry in logged] == [True] * 8 + [False]
    assert logged[1]["digest"] == logged[2]["digest"] != logged[3]["digest"]
