"""`ls`, `explain` and `gc`."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

from ckptmgr import CheckpointManager, KeepAll, KeepLast, Retention
from ckptmgr.retention import Steps
from ckptmgr.storage.attempt import LocalAttempt
from ckptmgr.storage.local import LocalStorage
from tests.cli.conftest import Shell, tree
from tests.trees import entries


def columns(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_steps_are_listed_newest_first(shell: Shell, trained: Path) -> None:
    """With what is known of each."""
    told = shell("ls", trained)
    assert told.code == 0
    heading, *lines = told.out.splitlines()
    assert columns(heading) == ["step", "state", "age", "size", "leaves", "metrics", "kept by"]
    assert [columns(line)[0] for line in lines] == ["500", "400", "300", "200", "0"]
    assert columns(lines[3])[1] == "committed"
    assert columns(lines[3])[3:] == [
        "722 kB",
        "9",
        "loss=0",
        "KeepBest(metric='loss', n=1, mode='min')",
    ]
    assert columns(lines[4])[1] == "pinned"
    assert columns(lines[4])[-1] == "pinned"
    assert "ago" in lines[0]


def test_scripts_read_json(shell: Shell, trained: Path) -> None:
    """Of everything that the lines say, and of times and bytes as numbers."""
    told = shell("ls", trained, "--json").json
    assert (told["run"], told["saving"]) == (str(trained), [])
    best = told["steps"][3]
    assert (best["step"], best["state"], best["leaves"]) == (200, "committed", 9)
    assert (best["metrics"], best["metadata"]) == ({"loss": 0}, {"by": "me"})
    assert best["kept"] == ["KeepBest(metric='loss', n=1, mode='min')"]
    assert best["path"] == str(trained / "step-00000200")
    assert best["pinned"] is False


def test_what_json_has_no_number_for_is_text(shell: Shell, run: Path) -> None:
    """And not null, as if it were not there."""
    with CheckpointManager(run) as manager:
        manager.save(1, {}, metrics={"loss": float("nan"), "other": float("-inf")}).result()
    assert shell("ls", run, "--json").json["steps"][0]["metrics"] == {
        "loss": "nan",
        "other": "-inf",
    }


def test_damaged_and_set_aside_steps_are_seen(shell: Shell, trained: Path) -> None:
    """As such, with what is wrong."""
    (trained / "step-00000500" / "checkpoint.json").write_bytes(b"{}")
    with CheckpointManager(trained) as manager:
        manager.save(500, tree(500)).result()
    (trained / "step-00000400" / "checkpoint.json").write_bytes(b"{}")
    lines = shell("ls", trained).out.splitlines()
    assert columns(lines[2])[:2] == ["400", "DAMAGED"]
    assert columns(lines[-1])[0] == "set aside"
    assert ".damaged-step-00000500-" in lines[-1]
    states = [step["state"] for step in shell("ls", trained, "--json").json["steps"]]
    assert states.count("damaged") == states.count("set aside") == 1


def test_a_save_on_its_way_is_listed_with_its_bar(
    shell: Shell, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the process that makes it is there."""
    go, told = threading.Event(), threading.Event()
    put, tell = LocalAttempt.put, LocalStorage.tell_status

    def slow(self: LocalAttempt, path: str, parts: object) -> None:
        if path.endswith("zarr.json"):
            assert go.wait(60)
        put(self, path, parts)  # type: ignore[arg-type]  # as it came

    def heard(self: LocalStorage, data: bytes) -> None:
        tell(self, data)
        if b'"bytes_done":722' in data:
            told.set()

    monkeypatch.setattr(LocalAttempt, "put", slow)
    monkeypatch.setattr(LocalStorage, "tell_status", heard)
    monkeypatch.setattr(LocalStorage, "status_seconds", 0.0)
    with CheckpointManager(run) as manager, contextlib.ExitStack() as at_the_end:
        at_the_end.callback(go.set)
        first, second = manager.save(1, tree(1)), manager.save(2, tree(2))
        assert told.wait(60)
        lines = shell("ls", run).out.splitlines()
        assert columns(lines[1])[:3] == ["1", "██████████ 100%", "722 kB"]
        assert columns(lines[2])[:2] == ["2", "queued"]
        works = shell("ls", run, "--json").json["saving"]
        assert [(work["step"], work["state"]) for work in works] == [(1, "writing"), (2, "queued")]
        go.set()
        first.result()
        second.result()
    assert [columns(line)[:2] for line in shell("ls", run).out.splitlines()[1:]] == [
        ["2", "committed"],
        ["1", "committed"],
    ]


def test_a_run_without_steps_says_so(shell: Shell, run: Path) -> None:
    """It is one all the same."""
    with CheckpointManager(run):
        pass
    assert shell("ls", run) == (0, "no step is committed yet\n", "")
    assert shell("ls", run, "--json").json["steps"] == []


def test_what_is_no_run_is_refused(shell: Shell, tmp_path: Path, trained: Path) -> None:
    """Nothing, something else, a file, and a single checkpoint."""
    (tmp_path / "file").write_text("x")
    for path, words in {
        tmp_path / "absent": "no such directory",
        tmp_path: "no run",
        tmp_path / "file": "a file, not a directory",
        trained / "step-00000500": "one checkpoint, not a run",
    }.items():
        told = shell("ls", path)
        assert (told.code, told.out) == (1, "")
        assert told.err.startswith("ckptmgr: ")
        assert words in told.err
        assert str(path) in told.err
        assert told.err.count("\n") == 1


def test_explain_says_why_each_step_is_or_is_not_there(shell: Shell, trained: Path) -> None:
    """By the rules that the writer had, also after it has ended."""
    told = shell("explain", trained)
    assert told.code == 0
    rules, *lines = told.out.splitlines()
    assert rules == "rules: KeepLast(n=3) | KeepBest(metric='loss', n=1, mode='min')"
    assert [line.split() for line in lines[:1]] == [["500", "kept:", "KeepLast(n=3),", "newest"]]
    assert lines[-1].split()[:2] == ["100", "deleted:"]
    found = shell("explain", trained, "--json").json
    assert found["kept"]["0"] == ["pinned"]
    assert found["deleted"].keys() == {"100"}
    assert found["goes"] == {}


def test_explain_takes_other_rules(shell: Shell, trained: Path) -> None:
    """And says what would go by them."""
    found = shell("explain", trained, "--keep", "KeepSteps({200})", "--json").json
    assert found["kept"] == {"0": ["pinned"], "200": ["KeepSteps({200})"], "500": ["newest"]}
    assert found["goes"].keys() == {"300", "400"}


class Mine(Retention):
    """A rule that only its trainer knows."""

    def keeps(self, steps: Steps) -> Steps:
        """All."""
        return steps


def test_rules_that_are_not_known_are_asked_for(shell: Shell, run: Path) -> None:
    """A rule of the trainer's own is no text that can be read."""
    with CheckpointManager(run, keep=Mine()) as manager:
        manager.save(1, {"a": 1}).result()
    told = shell("explain", run)
    assert told.code == 2
    assert "--keep 'KeepLast(3)'" in told.err
    assert shell("ls", run).code == 0


def test_gc_says_what_would_go_and_then_deletes_it(shell: Shell, trained: Path) -> None:
    """Not what is pinned; nothing with --dry-run."""
    rule = "KeepLast(1) | KeepSteps({200})"
    before = entries(trained)
    told = shell("gc", trained, "--keep", rule, "--dry-run")
    assert told.code == 0
    assert told.out.splitlines()[-1] == "would free 1.4 MB"
    assert [line.split()[:2] for line in told.out.splitlines()[1:3]] == [
        ["400", "goes:"],
        ["300", "goes:"],
    ]
    assert entries(trained) == before
    assert shell("gc", trained, "--keep", rule, "--dry-run", "--json").json["deleted"] == [300, 400]
    assert shell("gc", trained, "--keep", rule).out.splitlines()[-1] == "freed 1.4 MB"
    assert entries(trained) == ["step-00000000", "step-00000200", "step-00000500"]
    assert shell("gc", trained, "--keep", "KeepAll()", "--json").json["deleted"] == []


def test_gc_is_refused_while_a_manager_writes(shell: Shell, trained: Path) -> None:
    """A dry run is not."""
    with CheckpointManager(trained, keep=KeepAll()):
        told = shell("gc", trained, "--keep", "KeepLast(1)")
        assert told.code == 1
        assert "another manager writes" in told.err
        assert shell("gc", trained, "--keep", "KeepLast(1)", "--dry-run").code == 0
    assert len(entries(trained)) == 5


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        ("KeepLas(3)", "KeepLast is"),
        ("KeepLast(0)", "positive integer"),
        ("KeepLast(", "was never closed"),
        ("KeepLast(open('/etc/passwd'))", "no number or text"),
        ("", "no call of a rule"),
    ],
)
def test_rules_that_cannot_be_read_are_wrong_usage(
    shell: Shell, trained: Path, keep: str, words: str
) -> None:
    """With what is wrong and how it is written."""
    told = shell("gc", trained, "--keep", keep, "--dry-run")
    assert told.code == 2
    assert words in told.err
    assert "KeepLast(3) | KeepEvery(steps=1000)" in told.err


def test_what_is_said_of_rules_is_read_back(shell: Shell, run: Path) -> None:
    """The file beside the lock holds them as they are written."""
    with CheckpointManager(run, keep=KeepLast(7)) as manager:
        manager.save(1, {"a": 1}).result()
    assert shell("explain", run, "--json").json["keep"] == "KeepLast(n=7)"


def test_gc_never_leaves_a_damaged_step_alone(shell: Shell, trained: Path) -> None:
    """The newest that is to stay is verified first; one that is not whole does not count."""
    for name in ("step-00000500/packs/0/c.0", "step-00000400/tree.json"):
        data = bytearray((trained / name).read_bytes())
        data[1000] ^= 1
        (trained / name).write_bytes(data)
    dry = shell("gc", trained, "--keep", "KeepLast(1)", "--dry-run")
    told = shell("gc", trained, "--keep", "KeepLast(1)")
    assert (dry.code, told.code) == (0, 0)
    assert "       500  DAMAGED, and left alone" in dry.out
    assert "       200  deleted" in told.out
    assert entries(trained) == [f"step-{step:08d}" for step in (0, 300, 400, 500)]
    with CheckpointManager(trained) as manager:
        assert manager.resume(tree(0))[0] == 300


def test_gc_says_what_it_could_not_delete(shell: Shell, trained: Path) -> None:
    """And exits with 1: held, or with files of others in it."""
    (trained / "step-00000300" / "mine.txt").write_text("x")
    with CheckpointManager(trained, read_only=True) as reader, reader.hold(400):
        told = shell("gc", trained, "--keep", "KeepLast(1)")
    assert told.code == 1
    for step in (300, 400):
        assert f"{step}  not deleted: it is held, or holds files of others" in told.out
    assert shell("gc", trained, "--keep", "KeepLast(1)", "--json").json["left"] == [300]


def test_a_metric_that_no_step_has_is_doubted(shell: Shell, trained: Path) -> None:
    """It is a typing mistake, and would delete the best step."""
    told = shell("gc", trained, "--keep", "KeepLast(1) | KeepBest('acc')", "--dry-run")
    assert "note: no step has the metric 'acc'; there are loss" in told.out
    assert "note: " in shell("explain", trained, "--keep", "KeepBest('acc')").out
    assert "note: " not in shell("explain", trained).out


def test_a_status_that_says_nothing_stops_no_command(shell: Shell, trained: Path) -> None:
    """It proves nothing."""
    status = trained / ".status.json"
    for text in (b"{", b"[" * 100_000, b'{"host": 3}', b"\xff"):
        status.write_bytes(text)
        assert shell("ls", trained).code == 0
    status.unlink()
    status.mkdir()
    assert shell("ls", trained).code == 0
