"""A profile's page stands alone, draws what was recorded, and lets nothing that a program names become markup."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stitchcuda.hardware.model import Ceilings, Device
from stitchcuda.profiling.capture import Taken
from stitchcuda.profiling.cpu import judged
from stitchcuda.profiling.metrics import Facts
from stitchcuda.profiling.model import Loop
from stitchcuda.profiling.ncu_csv import parse
from stitchcuda.profiling.nsys_db import read
from stitchcuda.profiling.profiler import from_recording
from stitchcuda.profiling.recording import CALL, DeviceOp, Range, Recording
from stitchcuda.profiling.roofline import point
from stitchcuda.profiling.rules import Work
from stitchcuda.report.profile_html import page
from stitchcuda.report.roofline_svg import roofline_svg
from stitchcuda.report.timeline_svg import MOST_RECTANGLES, timeline_svg
from stitchcuda.task.model import Target
from tests.profiling.counters import counters
from tests.profiling.exports import REAL

H200 = Device(
    target=Target(kind="cuda", arch="sm_90"),
    name="NVIDIA H200",
    multiprocessors=132,
    memory_bytes=150_000_000_000,
    cache_bytes=60_000_000,
    ceilings=Ceilings(
        copy_bytes_per_second=4.2e12,
        flops_per_second={"fp32": 50e12, "tf32": 400e12, "bf16": 790e12},
        measured_on="2026-11-29",
    ),
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def real() -> Recording:
    """The real export, its three rounds as one call."""
    recording = read(REAL)
    start = recording.ops[1].start - 100_000
    recording.ranges.append(Range(start, recording.api[-1].end + 1000, CALL, recording.ranges[0].thread))
    return recording.sort()


def the_page(recording: Recording, title: str = "softmax of a product") -> str:
    counted = parse(REAL.with_name("ncu-softmax-basic.csv").read_text(), source="ncu").kernels
    profile = from_recording(
        Taken(recording, 26e-3, 25e-3), subject="reference", device=H200, flops=4e11, counters=counted[:2]
    )
    return page(profile, recording, title=title, device=H200, work=Work(2e8, 4e11, "fp32"))


class Tags(HTMLParser):
    """Counts tags, and checks that they close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        if tag not in ("meta", "br", "rect", "line", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        if tag == "li" or self.open[-1] == tag:
            self.open.pop()


def test_the_page_draws_timeline_and_roofline_and_needs_no_other_file() -> None:
    text = the_page(real())
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.seen["svg"] == 2
    assert "script" not in tags.seen
    assert not re.search(r'(src|href)="|url\(|@import', text)
    for part in (
        "stream 7",
        "CUDA API",
        "cudaDeviceSynchronize",
        "cunn_SoftMaxForwardReg",
        "4.2 TB/s",
        "Critical path",
    ):
        assert part in text


def test_no_labels_of_the_roofline_lie_upon_each_other() -> None:
    rates = {"fp32": 50e12, "tf32": 400e12, "bf16": 793e12, "fp16": 780e12}
    device = H200.model_copy(
        update={"ceilings": Ceilings(copy_bytes_per_second=4.2e12, flops_per_second=rates, measured_on="2026-11-29")}
    )
    one = counters(dram_read=1e9, ffma=1e9)
    assert point(Facts(one)) is not None
    twice = [one, one.model_copy(update={"name": "void other<int>(int)"})]
    profile = from_recording(Taken(real(), 26e-3, 25e-3), subject="reference", device=device, counters=twice)
    drawn = roofline_svg(profile, device.ceilings, None, "fp32")
    assert "bf16 793 TFLOP/s, fp16 780 TFLOP/s" in drawn
    places = [
        float(at) for at in re.findall(r'<text class="row" x="[^"]+" y="([^"]+)" text-anchor="(?:end|start)">', drawn)
    ]
    assert len(places) >= 5
    assert len(set(places)) == len(places)


def test_names_cannot_become_markup() -> None:
    recording = real()
    recording.ops[2].name = "<script>alert(1)</script>" * 20
    text = the_page(recording, title="<b>&title")
    assert "<script>" not in text
    assert "&lt;b&gt;&amp;title" in text


def test_what_a_processor_and_its_compiler_tell_is_shown() -> None:
    profile = from_recording(Taken(real(), 26e-3, 25e-3), subject="program", device=H200)
    counted = judged({"task-clock": 50.0, "page-faults": 7.0}, ["cycles"], wall_seconds=25e-3, calls=3, device=H200)
    loops = [
        Loop(file="<a>.cpp", line=4, vector_bytes=0, reason="control flow"),
        Loop(file="b", line=1, vector_bytes=32),
    ]
    text = page(
        profile.model_copy(update={"processor": counted, "loops": loops}), None, title="a call on a cpu", device=H200
    )
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    for part in ("on 2.0 cores", "page-faults", "1 of 2 vectorised (32 bytes wide)", "&lt;a&gt;.cpp:4", "control flow"):
        assert part in text


def test_a_hundred_thousand_kernels_make_a_page_of_bearable_size() -> None:
    ops = [DeviceOp(n * 5000, n * 5000 + 3000, f"k{n % 9}", "kernel", 7, n) for n in range(100_000)]
    recording = Recording("nsys", ops=ops, ranges=[Range(0, 500_000_000, CALL, 1)]).sort()
    drawn = timeline_svg(recording)
    assert drawn.count("<rect") <= MOST_RECTANGLES + 10
    assert len(drawn) < 2_000_000


def test_an_empty_recording_has_no_drawing() -> None:
    assert timeline_svg(Recording("nsys")) == ""


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium")
def test_a_browser_shows_it(tmp_path: Path) -> None:
    source, picture = tmp_path / "page.html", tmp_path / "page.png"
    source.write_text(the_page(real()))
    assert CHROMIUM is not None
    words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1240,1700"]
    subprocess.run(
        [*words, f"--user-data-dir={tmp_path}/profile", f"--screenshot={picture}", source.as_uri()],
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert picture.stat().st_size > 50_000
