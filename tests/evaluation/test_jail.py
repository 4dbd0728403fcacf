"""The jail that compilers run in, tried with a shell in the compiler's place."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from stitchcuda.evaluation.dependencies import foreign_files, listed
from stitchcuda.evaluation.jail import LEVELS, Jail, Limits, jail

needs_jail = pytest.mark.skipif(not jail().level, reason="this machine allows no confinement")


def run(work: Path, script: str, level: str | None = None, **limits: int) -> subprocess.CompletedProcess[str]:
    chosen = Jail(level, ()) if level is not None else jail()
    command = chosen.command(
        ["/bin/sh", "-c", script], work=work, cwd=work, roots=("/usr",), limits=Limits(**limits) if limits else None
    )
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@needs_jail
def test_only_the_work_folder_and_the_system_are_there(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("answer")
    work = tmp_path / "work"
    work.mkdir()
    done = run(work, f"cat {secret} /etc/passwd; ls / ; echo x > here; echo x > /usr/there")
    assert "answer" not in done.stdout
    assert "root:" not in done.stdout
    names = set(done.stdout.split())
    assert {"usr", "proc", "dev"} <= names
    assert not {"home", "root", "var", "mnt", "srv", "opt"} & names
    assert (work / "here").read_text() == "x\n"
    assert not Path("/usr/there").exists()


@needs_jail
def test_there_is_no_gpu_no_network_and_nobody_else(tmp_path: Path) -> None:
    done = run(
        tmp_path, "ls /dev; cat /proc/net/dev | tail -n +3; echo; ls -d /proc/[0-9]*; grep CapEff /proc/self/status"
    )
    assert not any(name.startswith("nvidia") for name in done.stdout.split())
    assert [line.split(":")[0].strip() for line in done.stdout.splitlines() if ":" in line][:1] == ["lo"]
    assert len([name for name in done.stdout.split() if name.startswith("/proc/")]) <= 4
    assert "CapEff:\t0000000000000000" in done.stdout


@needs_jail
def test_limits_hold_and_codes_come_through(tmp_path: Path) -> None:
    assert run(tmp_path, "exit 3").returncode == 3
    assert run(tmp_path, "kill -11 $$").returncode == 128 + 11
    run(tmp_path, "head -c 5000000 /dev/zero > big", file_bytes=1 << 20)
    assert (tmp_path / "big").stat().st_size <= 1 << 20


@needs_jail
def test_everything_ends_with_whoever_started_it(tmp_path: Path) -> None:
    own = f"sleep 61.{os.getpid()}"
    command = jail().command(["/bin/sh", "-c", f"{own} & {own}"], work=tmp_path, cwd=tmp_path, roots=())
    process = subprocess.Popen(command, start_new_session=True)
    assert _within_half_a_minute(own, True)
    process.kill()
    process.wait()
    assert _within_half_a_minute(own, False)


def _within_half_a_minute(words: str, wanted: bool) -> bool:
    """Whether a process of that name runs, or does not, soon."""
    deadline = time.monotonic() + 30
    while _running(words) is not wanted:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _running(words: str) -> bool:
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=False).stdout
    return any(line.startswith(words) for line in listing.splitlines())


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
@needs_jail
def test_root_gives_compilers_a_user_of_their_own(tmp_path: Path) -> None:
    assert jail().level == LEVELS[0]
    assert run(tmp_path, "id -u").stdout.strip() != "0"
    assert run(tmp_path, "id -u", level="same_user").stdout.strip() == "0"


def test_without_confinement_the_command_is_as_it_was(tmp_path: Path) -> None:
    bare = Jail("", ("confinement of compilers",))
    assert bare.command(["g++", "x"], work=tmp_path, cwd=tmp_path, roots=()) == ["g++", "x"]
    assert bare.describe() == "without confinement of compilers"


def test_a_list_of_dependencies_is_read_as_make_reads_it() -> None:
    text = "k.o : k.cu \\\n  /usr/include/a\\ b.h \\\n    sub/x.h\n"
    assert listed(text) == ["k.cu", "/usr/include/a b.h", "sub/x.h"]


def test_files_of_the_program_and_of_toolkits_are_nobodys_business_else(tmp_path: Path) -> None:
    folder, toolkit = tmp_path / "src", tmp_path / "cuda"
    (toolkit / "include").mkdir(parents=True)
    folder.mkdir()
    (folder / "link.h").symlink_to("/etc/passwd")
    names = [
        *(
            "k.cu",
            "sub/own.h",
            "/usr/include/math.h",
            "/usr/lib/gcc/x/12/include/stddef.h",
            f"{toolkit}/bin/../include/x.h",
        ),
        *("/etc/passwd", "../secret.h", f"{toolkit}/answers.h", "/usr/include/../../etc/hosts", "link.h"),
    ]
    foreign = foreign_files(names, folder, ("/usr", str(toolkit)))
    assert foreign == sorted(names[5:])
