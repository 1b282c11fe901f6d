"""The command as a process: what it imports, how it ends, and what terminals see."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import ckptmgr
from tests.cli.conftest import Shell
from tests.storage.servers import Store

NAMES = ("ls", "show", "diff", "verify", "explain", "gc", "pin", "unpin", "annotate", "rm", "watch")
COMMAND = [sys.executable, "-m", "ckptmgr.cli"]


def called(*arguments: object, **options: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env={**os.environ, **options},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls"],
        ["show"],
        ["diff", "RUN", "400", "500"],
        ["verify"],
        ["explain"],
        ["gc", "RUN", "--dry-run", "--keep", "KeepLast(1)"],
        ["pin", "RUN", "400"],
        ["unpin", "RUN", "400"],
        ["annotate", "RUN", "400", "--metric", "a=1"],
        ["rm", "RUN", "400"],
        ["watch", "RUN", "--once"],
    ],
)
def test_no_command_that_looks_and_tidies_imports_jax(trained: Path, arguments: list[str]) -> None:
    """It takes half a second, and on some machines a device."""
    words = [str(trained) if word == "RUN" else word for word in arguments]
    words = words if len(words) > 1 else [*words, str(trained)]
    program = (
        "import sys\n"
        "from ckptmgr.cli.app import run\n"
        f"code = run({words!r})\n"
        "assert 'jax' not in sys.modules, 'jax was imported'\n"
        "sys.exit(code)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert finished.returncode == (3 if arguments[0] == "diff" else 0), finished.stderr


def test_without_arguments_it_says_what_there_is() -> None:
    """And each command says what it takes."""
    every = called("--help")
    assert every.returncode == 0
    for command in [
        "ls",
        "show",
        "diff",
        "verify",
        "explain",
        "gc",
        "pin",
        "unpin",
        "annotate",
        "rm",
        "watch",
        "bench",
    ]:
        assert f"\n  {command} " in every.stdout
        said = called(command, "--help")
        assert said.returncode == 0
        assert "Usage: ckptmgr" in said.stdout
    assert "Exit codes: 0 done; 1 not done; 2 wrongly asked; 3 damaged" in every.stdout


@pytest.mark.parametrize(
    "arguments",
    [["lss"], ["ls"], ["ls", "--foo", "x"], ["show", "x", "--depth", "deep"], ["rm", "x"]],
)
def test_wrong_usage_is_said_in_lines_and_exits_with_2(arguments: list[str]) -> None:
    """On stderr."""
    told = called(*arguments)
    assert (told.returncode, told.stdout) == (2, "")
    assert "Error: " in told.stderr
    assert "Traceback" not in told.stderr


def test_a_reader_that_goes_away_is_no_error(trained: Path) -> None:
    """As `head` does: silence, and the code that shells give for it."""
    script = f"{sys.executable} -m ckptmgr.cli show {trained} | true; echo ${{PIPESTATUS[0]}}"
    # More than a pipe holds, so that somebody must notice.
    ckptmgr.save(trained.parent / "many", {f"leaf_{n:05}": n for n in range(20_000)})
    script = script.replace(str(trained), str(trained.parent / "many"))
    told = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (told.stdout, told.stderr) == ("141\n", "")


def in_terminal(*arguments: object, width: int) -> tuple[int, str]:
    """The exit code of a command and what it wrote to a terminal of so many columns."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**environment, "TERM": "xterm"},
    ) as process:
        os.close(child)
        data = b""
        while True:
            try:
                part = os.read(parent, 65536)
            except OSError:  # how a terminal ends on Linux
                break
            if not part:
                break
            data += part
        os.close(parent)
        return process.wait(60), data.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("width", [40, 60, 200])
def test_tables_fit_the_terminal(trained: Path, width: int) -> None:
    """What matters least goes first."""
    code, out = in_terminal("ls", trained, width=width)
    assert code == 0
    lines = out.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].split()[:3] == ["step", "state", "age"]
    assert len(lines) == 6
    assert ("kept by" in lines[0]) == (width > 40)
    assert ("leaves" in lines[0]) == (width == 200)
    code, out = in_terminal("show", trained, width=width)
    assert code == 0
    assert max(map(len, out.splitlines())) <= width


def test_a_terminal_sees_a_bar_that_goes_away(trained: Path) -> None:
    """And then what was found."""
    code, out = in_terminal("verify", trained, "--all", width=80)
    assert code == 0
    assert "verifying step-00000500" in out
    assert out.count(": ok, ") == 5


def test_names_cannot_speak_to_the_terminal(tmp_path: Path) -> None:
    """Whatever bytes a key holds."""
    ckptmgr.save(tmp_path / "odd", {"\x1b[31mred\x07": 1})
    _, out = in_terminal("show", tmp_path / "odd", width=80)
    assert "\x07" not in out
    assert "\\x1b[31mred\\x07" in out


def test_it_says_what_to_install_where_typer_is_missing() -> None:
    """The package works without it."""
    program = "import sys\nsys.modules['typer'] = None\nfrom ckptmgr.cli import main\nmain()\n"
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert told.returncode == 1
    assert "pip install 'ckptmgr[cli]'" in told.stderr
    assert "Traceback" not in told.stderr


@pytest.fixture(params=["s3", "gs"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A prefix on each kind of store, found by what the environment says."""
    found: Store = request.getfixturevalue(request.param)
    if request.param == "s3":
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.endpoint)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
    return found


def test_everything_works_on_object_stores(shell: Shell, store: Store) -> None:
    """By the URL of the run."""
    url = store.url
    with ckptmgr.CheckpointManager(url, keep=ckptmgr.KeepLast(3)) as manager:
        for step in (1, 2, 3):
            manager.save(step, {"a": step, "b": [1.5]}, metrics={"loss": step}).result()
        assert "another" in shell("rm", url, 1).err
    assert [row["step"] for row in shell("ls", url, "--json").json["steps"]] == [3, 2, 1]
    assert shell("show", url, 2).code == 0
    assert shell("show", f"{url}/step-00000002").code == 0
    assert shell("diff", url, 1, 2).code == 3
    assert shell("verify", url, "--all").code == 0
    assert shell("pin", url, 1).code == 0
    assert shell("annotate", url, 2, "--metric", "score=1").code == 0
    assert shell("explain", url, "--json").json["kept"]["1"] == ["KeepLast(n=3)", "pinned"]
    assert shell("watch", url, "--once", "--json").json["closed"] is True
    assert shell("gc", url, "--keep", "KeepLast(1)").code == 0
    assert shell("rm", url, 3).code == 0
    assert [row["step"] for row in shell("ls", url, "--json").json["steps"]] == [1]
    told = shell("ls", "s3x://bucket/run")
    assert (told.code, told.out) == (2, "")
    assert "no store is known" in told.err


def test_a_terminal_is_watched_live_until_ctrl_c(trained: Path) -> None:
    """Drawn anew in its place."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    with subprocess.Popen(
        [*COMMAND, "watch", str(trained)],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**os.environ, "TERM": "xterm"},
    ) as process:
        os.close(child)
        data = b""
        while data.count(b"closed") < 2:
            data += os.read(parent, 65536)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # how a terminal ends on Linux
            while part := os.read(parent, 65536):
                data += part
        os.close(parent)
        assert process.wait(60) == 130
    assert b"step 500" in data
    assert b"Traceback" not in data
