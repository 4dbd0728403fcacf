"""Stock options that are shared between machines, and those about memory layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from stitchcuda.errors import StitchError
from stitchcuda.evaluation.baseline_cache import Place, Shared, entry_path, export_book, import_book, read, write
from stitchcuda.evaluation.model import Timing
from stitchcuda.evaluation.stock import wrap
from stitchcuda.evaluation.stock_options import images
from stitchcuda.hardware.model import Device
from stitchcuda.task.model import Target, Task, TaskFacts, TensorFacts

DEVICE = Device(
    target=Target(kind="cuda", arch="sm_90"),
    name="NVIDIA H200",
    multiprocessors=132,
    memory_bytes=1,
    cache_bytes=1,
    driver="580.95",
    runtime="13.0",
)
DIGEST = "ab" * 32


def timing(median: float, note: str = "") -> Timing:
    return Timing(median=median, p10=median, p90=median, n=20, note=note)


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.json"
    timings = {"eager": timing(2.0), "cuda_graph": timing(1.0)}
    export_book(path, DEVICE, [Shared(task="gru", digest=DIGEST, precision="fp32", timings=timings)])
    return path


def test_shared_baselines_serve_the_same_kind_of_machine(book: Path, tmp_path: Path) -> None:
    (taken,) = import_book(book, tmp_path / "cache", DEVICE)
    assert taken.task == "gru"
    found = read(entry_path(tmp_path / "cache", DIGEST, Place.here(DEVICE)))
    assert {name: timing.median for name, timing in found.items()} == {"eager": 2.0, "cuda_graph": 1.0}
    assert found["eager"].note.startswith("imported, measured until ")


def test_what_was_measured_here_stays(book: Path, tmp_path: Path) -> None:
    path = entry_path(tmp_path / "cache", DIGEST, Place.here(DEVICE))
    write(path, {"eager": timing(3.0)})
    import_book(book, tmp_path / "cache", DEVICE)
    assert {name: timing.median for name, timing in read(path).items()} == {"eager": 3.0, "cuda_graph": 1.0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "NVIDIA A100"}, "device 'NVIDIA H200', not 'NVIDIA A100'"),
        ({"driver": "570.1"}, "driver '580.95', not '570.1'"),
        ({"runtime": "12.8"}, "runtime '13.0', not '12.8'"),
        ({"multiprocessors": 66}, "cores 132, not 66"),
    ],
)
def test_baselines_of_another_device_or_version_are_refused(
    book: Path, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    with pytest.raises(StitchError, match="do not compare") as refused:
        import_book(book, tmp_path / "cache", DEVICE.model_copy(update=change))
    assert words in str(refused.value)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("content", ["", "{}", '{"format": 1}', "[1, 2]"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "book.json"
    path.write_text(content)
    with pytest.raises(StitchError, match="holds no baselines"):
        import_book(path, tmp_path / "cache", DEVICE)


def test_a_digest_cannot_lead_out_of_the_cache(book: Path, tmp_path: Path) -> None:
    data = json.loads(book.read_text())
    data["tasks"][0]["digest"] = "../../elsewhere"
    book.write_text(json.dumps(data))
    with pytest.raises(StitchError, match="digest"):
        import_book(book, tmp_path / "cache", DEVICE)


def test_channels_last_gives_the_same_values_and_leaves_the_tensors_that_are_watched() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    watched = dict(model.named_parameters())
    x = torch.randn(2, 3, 16, 16)
    model.eval()
    expected = model(x)
    relaid = wrap(model, "channels_last")
    torch.testing.assert_close(relaid(x), expected)
    assert {name: id(tensor) for name, tensor in model.named_parameters()} == {n: id(t) for n, t in watched.items()}
    weight = model.get_parameter("0.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_another_layout_is_tried_for_tasks_with_images_only() -> None:
    def facts(*shape: int) -> TaskFacts:
        return TaskFacts(
            inputs=[TensorFacts(shape=shape, dtype="float32")],
            outputs=[],
            parameters=0,
            stochastic=False,
            seedable=False,
            training=False,
            mutates_state=False,
            eager_seconds=0.0,
        )

    def task(source: str) -> Task:
        return Task(name="a", origin="a.py", source=source, target=Target(kind="cpu", arch="native"))

    assert images(task("nn.Conv2d(3, 8, 3)"), facts(1, 3, 8, 8))
    assert images(task("F.max_pool2d(x, 2)"), facts(1, 3, 8, 8))
    assert not images(task("nn.Linear(3, 8)"), facts(1, 3, 8, 8))
    assert not images(task("nn.Conv2d(3, 8, 3)"), facts(8, 8))
