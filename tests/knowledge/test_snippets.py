"""Programs that won: who may enter, how they are found, and that a split under test never meets its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stitchcuda.errors import KnowledgeError
from stitchcuda.knowledge.fingerprint import fingerprint_of, operators_of
from stitchcuda.knowledge.retriever import Retriever
from stitchcuda.knowledge.search import Searcher
from stitchcuda.knowledge.snippets import add_run, find_snippets
from stitchcuda.knowledge.store import Store

MLP = '''
import torch
import torch.nn as nn

class Model(nn.Module):
    """An MLP."""
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.act = nn.GELU()

    def forward(self, x):
        return torch.softmax(self.act(self.fc(x)), dim=-1)

def get_inputs():
    return [torch.randn(64, 512)]

def get_init_inputs():
    return [512]
'''
CONV = """
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x):
        return self.norm(self.conv(x)).relu()
"""
LINEAR_GELU = ["linear", "gelu", "softmax"]


def make_run(folder: Path, source: str = MLP, **summary: Any) -> Path:
    """A run folder as a finished run leaves it."""
    (folder / "best").mkdir(parents=True)
    (folder / "task.py").write_text(source)
    (folder / "best" / "program.py").write_text(f"class ModelNew: ...  # {folder.name}\n")
    (folder / "best" / "kernel.cu").write_text("__global__ void winner() {}\n")
    best = {
        "number": 3,
        "evaluation": {
            "status": "correct",
            "tier": "publish",
            "precision": "fp32",
            "speedup": {"eager": 3.0, "over_best": 1.8},
            "provenance": {"device": "NVIDIA H200", "torch": "2.11", "cuda": "13.0", "task": "0" * 64},
        },
    }
    facts = {
        "status": "correct",
        "task": "mlp",
        "target": "sm_90",
        "device": "NVIDIA H200",
        "precision": "fp32",
        "tier": "publish",
        "over_best": 1.8,
        "speedup": {"eager": 3.0, "over_best": 1.8},
    }
    shape = [65536, 4096] if "65536" in source else [64, 512]
    prepared = {"kind": "prepared", "data": {"facts": {"inputs": [{"shape": shape, "dtype": "float32"}]}}}
    (folder / "journal.jsonl").write_text('{"kind": "created"}\n' + json.dumps(prepared) + "\n{torn")
    (folder / "best.json").write_text(json.dumps(best))
    (folder / "summary.json").write_text(json.dumps({**facts, **summary}))
    return folder


def test_operators_are_read_from_the_source() -> None:
    assert operators_of(MLP) == LINEAR_GELU
    assert operators_of(CONV) == ["conv2d", "batch_norm", "relu"]


def test_a_winner_is_stored_with_its_gain_and_conditions_and_found_by_its_pattern(store: Store, tmp_path: Path) -> None:
    add_run(store, make_run(tmp_path / "one"))
    add_run(store, make_run(tmp_path / "two", CONV, task="conv"))
    (passage,) = Retriever(Searcher(store)).snippets(LINEAR_GELU, [(64, 512)], limit=1)
    assert "1.80 times as fast" in passage.text
    assert "NVIDIA H200" in passage.text
    assert "__global__ void winner()" in passage.text
    assert "(64, 512)" in passage.text
    assert passage.kind == "snippet"


def test_adding_a_run_again_changes_nothing(store: Store, tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    assert (add_run(store, run).added, add_run(store, run).added) == (1, 0)
    assert store.totals()[0] == 1


def test_ordinary_searches_do_not_meet_snippets(store: Store, tmp_path: Path) -> None:
    add_run(store, make_run(tmp_path / "one"))
    assert Searcher(store).search("winner softmax gelu program") == []
    assert Searcher(store).search("winner softmax gelu program", kinds=["snippet"])


def test_another_architecture_is_left_out(store: Store, tmp_path: Path) -> None:
    add_run(store, make_run(tmp_path / "one"))
    assert find_snippets(store, LINEAR_GELU, target="sm_90a")
    assert not find_snippets(store, LINEAR_GELU, target="sm_80")
    assert not find_snippets(store, LINEAR_GELU, target="cpu")


def test_a_looser_precision_class_is_left_out(store: Store, tmp_path: Path) -> None:
    add_run(store, make_run(tmp_path / "one", precision="bf16"))
    assert find_snippets(store, LINEAR_GELU, precision="bf16")
    assert not find_snippets(store, LINEAR_GELU, precision="fp32")
    add_run(store, make_run(tmp_path / "two"))
    assert len(find_snippets(store, LINEAR_GELU, precision="bf16")) == 2
    assert len(find_snippets(store, LINEAR_GELU, precision="fp32")) == 1


def test_nearer_shapes_come_first(store: Store, tmp_path: Path) -> None:
    near = add_run(store, make_run(tmp_path / "near"))
    add_run(store, make_run(tmp_path / "far", MLP.replace("64, 512", "65536, 4096").replace("An MLP", "B"), task="far"))
    ranked = find_snippets(store, LINEAR_GELU, [(60, 500)])
    first = Searcher(store).passages(ranked[:1])[0]
    assert first.source.startswith(near.uri)


@pytest.mark.parametrize(
    "reworded",
    [
        MLP.replace("An MLP.", "Something else.")
        .replace("width", "w")
        .replace("self, x", "self, y")
        .replace("(x)", "(y)"),
        MLP.replace("64, 512", "128, 1024").replace("[512]", "[1024]"),
        "# a comment\n" + MLP.replace("self, width", "self, width: int"),
    ],
)
def test_a_task_under_test_is_never_retrieved_even_reworded_or_resized(
    store: Store, tmp_path: Path, reworded: str
) -> None:
    assert fingerprint_of(reworded) == fingerprint_of(MLP)
    add_run(store, make_run(tmp_path / "one", reworded))
    open_to_all = Retriever(Searcher(store))
    under_test = Retriever(Searcher(store), excluded_tasks=[fingerprint_of(MLP)])
    assert open_to_all.snippets(LINEAR_GELU)
    assert under_test.snippets(LINEAR_GELU) == []


def test_different_models_have_different_fingerprints() -> None:
    assert fingerprint_of(MLP) != fingerprint_of(CONV)
    assert fingerprint_of(MLP) != fingerprint_of(MLP.replace("GELU", "ReLU"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": "no_gain", "over_best": 0.9}, "no program"),
        ({"status": "nothing_correct"}, "no program"),
        ({"over_best": 1.01, "speedup": {"over_best": 1.01}}, "1.01 times"),
        ({"over_best": None, "speedup": {}}, "no program"),
        ({"findings": [{"rule": "x", "severity": "reject", "evidence": "e"}]}, "integrity"),
        ({"labels": ["non_discriminating"]}, "trivial answer"),
    ],
)
def test_only_what_was_measured_correct_and_faster_enters(
    store: Store, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(KnowledgeError, match=reason):
        add_run(store, make_run(tmp_path / "run", **change))
    assert store.sources() == []


def test_a_folder_that_is_no_run_is_wrong_use(store: Store, tmp_path: Path) -> None:
    with pytest.raises(KnowledgeError, match="not the folder of a finished run"):
        add_run(store, tmp_path)
    run = make_run(tmp_path / "run")
    (run / "summary.json").write_text("{")
    with pytest.raises(KnowledgeError, match="not JSON"):
        add_run(store, run)
