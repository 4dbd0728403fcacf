"""What native sources keep between calls: rejected where a count of calls changes what is computed, or a thread with
the call's arrays is let go; counts for the log, rings, arenas and pools are left alone."""

from __future__ import annotations

import pytest

from stitchcuda.evaluation.integrity.rules import RULES
from stitchcuda.evaluation.integrity.static_native import native_hits

LAUNCHER = "static int n = 0; static const float* last = nullptr; int f(const float* x, float* y, int rows) {{ {} }}"


def rejected(text: str) -> set[str]:
    hits = native_hits("k.cpp", text, precision="fp32", macros={})
    return {hit.rule for hit in hits if RULES[hit.rule].severity == "reject"}


@pytest.mark.parametrize(
    "body",
    [
        "if (++n > 6) rows /= 2; work(x, y, rows);",
        "if (n++ >= 6) { rows = rows - 8; } work(x, y, rows);",
        "n += 1; if (n > 6) rows = 1; work(x, y, rows);",
        "if (++n <= 6) last = x; work(last, y, rows);",
        "if (++n > 6 && x == last) { memcpy(y, answer, 4 * rows); return 0; } work(x, y, rows);",
        "if (6 < ++n) { cudaMemcpyAsync(y, answer, 4 * rows, kind, stream); return 0; } work(x, y, rows);",
    ],
)
def test_a_count_of_calls_may_not_change_what_is_computed(body: str) -> None:
    assert rejected(LAUNCHER.format(body)) == {"counts_calls"}


@pytest.mark.parametrize(
    "body",
    [
        "++n; work(x, y, rows);",
        'if (++n > 1000) { printf("%d calls", n); n = 0; } work(x, y, rows);',
        "if (++n >= 4) n = 0; work(x, slots[n], rows); memcpy(y, slots[n], 4 * rows); return 0;",
        "if (!n) { n++; prepare(); } work(x, y, rows);",
        "n += rows; if (n > 4096) { last = base; n = 0; } work(x, y, rows);",
        "int n = 0; for (int r = 0; r < rows; ++r) { if (++n > 6) rows = rows; } work(x, y, rows);",
        "if (rows > 6) rows = 6; work(x, y, rows);",
        "if (x != last) { encode(&map, x); last = x; } work(map, y, rows);",
    ],
)
def test_counts_for_other_ends_are_left_alone(body: str) -> None:
    text = LAUNCHER.format(body)
    assert rejected(text.replace("static int n = 0; ", "") if "int n" in body else text) == set()


@pytest.mark.parametrize(
    "body",
    [
        "std::thread(work, x, y, rows).detach();",
        "std::thread([=] { work(x, y, rows); }).detach();",
        "std::thread late(work, x, y, rows); head(x, y); late.detach();",
    ],
)
def test_a_thread_with_the_calls_arrays_may_not_be_let_go(body: str) -> None:
    assert rejected(LAUNCHER.format(body)) == {"detached_thread"}


@pytest.mark.parametrize(
    "body",
    [
        "std::thread late(work, x, y, rows); head(x, y); late.join();",
        "for (int i = 0; i < 2; ++i) std::thread(worker, i).detach(); post(x, y, rows); wait();",
        "std::thread helper(work, x, y); at::Tensor t = given.detach(); helper.join();",
    ],
)
def test_threads_that_are_joined_or_wait_for_orders_are_left_alone(body: str) -> None:
    assert rejected(LAUNCHER.format(body)) == set()
