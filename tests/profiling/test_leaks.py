"""What a profiler wrote is searched for secrets before it is kept, in every form that a report may hold them."""

from __future__ import annotations

import base64
import gzip
import os
import sqlite3
import zlib
from pathlib import Path

import pytest

from stitchcuda.errors import StitchError
from stitchcuda.profiling.leaks import leaks, secrets_of
from stitchcuda.profiling.measure import keep_files

PLANTED = "planted-secret-0123456789"
ENVIRONMENT = {"MY_API_KEY": PLANTED, "EDITOR": "vim-is-no-secret", "SHORT_TOKEN": "none"}


def database(tmp_path: Path) -> bytes:
    path = tmp_path / "e.sqlite"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        file.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('MY_API_KEY', ?)", (PLANTED,))
    return path.read_bytes()


@pytest.mark.parametrize("form", ["plain", "utf16", "base64", "gzip", "zlib", "database"])
def test_a_planted_key_is_found_in_every_form(form: str, tmp_path: Path) -> None:
    key = PLANTED.encode()
    data = {
        "plain": b"\0\1" + key + b"\0",
        "utf16": PLANTED.encode("utf-16-le"),
        "base64": b"x" + base64.b64encode(key),
        "gzip": gzip.compress(b"..." + key + b"..."),
        "zlib": b"NVIDIA Tegra Profiler Report" + zlib.compress(b"environment" * 9 + key) + b"rest",
        "database": database(tmp_path),
    }[form]
    assert leaks(data, ENVIRONMENT) == ["MY_API_KEY"]


def test_what_only_looks_like_a_key_by_its_form_is_found_without_an_environment() -> None:
    assert leaks(b"token=hf_" + b"A" * 34, {}) == ["a Hugging Face token"]
    assert leaks(b"-----BEGIN RSA PRIVATE KEY-----", {}) == ["a private key"]
    assert leaks(b"vim-is-no-secret none risk-free sk-", ENVIRONMENT) == []


def test_only_names_that_say_secret_count() -> None:
    assert secrets_of(ENVIRONMENT) == {"MY_API_KEY": PLANTED}


def test_a_file_with_a_secret_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", PLANTED)
    files = {"rep.sqlite": b"clean", "rep.nsys-rep": b"..." + os.environ["MY_API_KEY"].encode()}
    with pytest.raises(StitchError, match="MY_API_KEY") as raised:
        keep_files(files, tmp_path / "kept")
    assert PLANTED not in str(raised.value)
    assert not (tmp_path / "kept").exists()
    (kept,) = keep_files({"reference.sqlite": b"clean"}, tmp_path / "kept")
    assert kept.name == "reference.sqlite"
