"""A generation that is killed, anywhere and again and again, loses no finished game and ends with
the same files."""

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from filelock import FileLock

from pipeline.errors import Stopped
from pipeline.executors import local
from pipeline.selfplay.config import ExploreError
from pipeline.selfplay.job import explore
from pipeline.validation.verify import files_differ
from tests.model.test_checkpoint import make
from tests.pipeline import datasets
from tests.pipeline.selfplay.generations import journalled, records, small, start, told
from tests.processes import workers_of
from tests.waiting import until

CONFIG = small(games=40)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Give what an undisturbed run leaves."""
    out = tmp_path_factory.mktemp("selfplay") / "undisturbed"
    explore(None, CONFIG, out, workers=1)
    return told(out)


def stopped_at(games: int, out: Path) -> None:
    """Play some games, and stop."""
    asked = [0]
    with pytest.raises(Stopped):
        explore(
            None,
            CONFIG,
            out,
            workers=1,
            progress=lambda tick: asked.__setitem__(0, tick.done),
            stop=lambda: asked[0] >= games,
        )


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_no_finished_game_is_lost_by_kills(
    tmp_path: Path, undisturbed: dict[str, Any], kills: int
) -> None:
    chance, out = random.Random(5), tmp_path / "out"
    for _ in range(kills):
        before = journalled(out)
        finished = len(before) + chance.randrange(1, 9)
        assert start(CONFIG, out, kill_after=finished).wait() == -signal.SIGKILL
        assert before < journalled(out)
        assert len(journalled(out)) >= finished
    seen = journalled(out)
    ticks: list[int] = []
    explore(None, CONFIG, out, workers=1, progress=lambda tick: ticks.append(tick.done))
    assert ticks == list(range(len(seen) + 1, CONFIG.games + 1)), "only what was missing is played"
    assert told(out) == undisturbed


@pytest.mark.slow
def test_a_process_that_is_killed_is_replaced(
    tmp_path: Path, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "POLL_SECONDS", 0.01)
    killed: list[int] = []

    def kill(_: object) -> None:
        workers = workers_of()
        if not killed and journalled(tmp_path / "out") and workers:
            killed.append(workers[0].pid)
            workers[0].kill()

    explore(None, CONFIG, tmp_path / "out", workers=2, progress=kill)
    assert killed
    assert told(tmp_path / "out") == undisturbed


def test_a_full_disk_is_said_and_the_finished_games_are_kept(
    tmp_path: Path, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_at(12, tmp_path / "out")
    before = journalled(tmp_path / "out")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            ExploreError, match=r"No space left on device.*what was finished is kept"
        ):
            explore(None, CONFIG, tmp_path / "out", workers=1)
    assert before <= journalled(tmp_path / "out")
    explore(None, CONFIG, tmp_path / "out", workers=1)
    assert told(tmp_path / "out") == undisturbed


def test_a_full_disk_while_the_dataset_is_made_leaves_no_dataset(
    tmp_path: Path, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    real = os.fsync
    for number in (2, 4, 6, 8):

        def full(descriptor: int, number: int = number) -> None:
            nonlocal calls
            calls += 1
            if calls >= number:
                raise OSError(28, "No space left on device")
            real(descriptor)

        calls = 0
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(ExploreError, match="No space left on device"):
                explore(None, CONFIG, tmp_path / "out", workers=1)
        assert not (tmp_path / "out" / "manifest.json").exists()
        assert not list((tmp_path / "out").rglob("*.tmp"))
    assert len(journalled(tmp_path / "out")) == CONFIG.games
    explore(None, CONFIG, tmp_path / "out", workers=1)
    assert told(tmp_path / "out") == undisturbed


def test_other_settings_and_other_checkpoints_are_refused_by_name(tmp_path: Path) -> None:
    stopped_at(3, tmp_path / "out")
    refused = (
        ({"seed": 1}, {}, "config.seed was 0, not 1"),
        ({"resign": 0.5}, {}, "config.resign was 0.6, not 0.5"),
        ({}, {"lineage": {"loop": 4}}, "lineage.loop"),
    )
    for settings, words, said in refused:
        with pytest.raises(ExploreError, match=said):
            explore(None, small(**{"games": 40, **settings}), tmp_path / "out", workers=1, **words)  # type: ignore[arg-type]
    make(tmp_path / "one", seed=1)
    make(tmp_path / "two", seed=2)
    config = small(games=2, explorer="network", most_plies=4, sampled_plies=0, device="cpu")
    explore(tmp_path / "one", config, tmp_path / "network", workers=1)
    with pytest.raises(
        ExploreError, match=r"checkpoint.weights_sha256 was '[0-9a-f]{64}', not '[0-9a-f]{64}'"
    ):
        explore(tmp_path / "two", config, tmp_path / "network", workers=1)
    (tmp_path / "one").rename(tmp_path / "moved")
    explore(tmp_path / "moved", config, tmp_path / "network", workers=1)


def test_a_directory_of_something_else_and_one_that_is_in_use_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text("{}")
    with pytest.raises(ExploreError, match="not of a generation of self-play"):
        explore(None, CONFIG, tmp_path / "other", workers=1)
    (tmp_path / "out").mkdir()
    with (
        FileLock(tmp_path / "out" / ".lock"),
        pytest.raises(ExploreError, match="another process works in"),
    ):
        explore(None, CONFIG, tmp_path / "out", workers=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(ExploreError, match="cannot be made"):
        explore(None, CONFIG, tmp_path / "file", workers=1)


def test_a_damaged_journal_is_played_again_where_it_is_damaged(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    stopped_at(12, tmp_path / "out")
    path = next((tmp_path / "out" / ".journal").glob("*.jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    games = [number for number, line in enumerate(lines) if b'"searches"' in line]
    lines[games[3]] = lines[games[3]].replace(b'"searches"', b'"se\xffrches"')
    lines[games[5]] = lines[games[5]].replace(b"1. ", b"7. ")
    path.write_bytes(b"".join(lines)[:-40])
    explore(None, CONFIG, tmp_path / "out", workers=1)
    assert datasets.manifest(tmp_path / "out")["selfplay"]["timing"]["damaged_lines"] == 3
    assert told(tmp_path / "out") == undisturbed


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_kills_lose_no_finished_game(tmp_path: Path) -> None:
    config = small(games=10_000)
    out, chance, killed = tmp_path / "out", random.Random(11), 0
    for attempt in range(100):
        before = journalled(out)
        process = start(
            config,
            out,
            workers=1 + attempt % 2,
            kill_at=chance.randrange(1, 12) if attempt % 3 == 0 else 0,
        )
        with suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0.05, 2.0) + (attempt % 2) * 1.5)
        finished = journalled(out)
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        if (out / "manifest.json").exists():
            break
        assert before <= finished <= journalled(out)
    assert killed >= 60
    explore(None, config, out, workers=2)
    assert files_differ(out) == []
    explore(None, config, tmp_path / "whole", workers=2)
    assert told(out) == told(tmp_path / "whole")
    assert len(records(out)) == 10_000


@pytest.mark.slow
def test_killed_with_any_file_open_and_started_again(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    kill_at, killed = 1, 0
    while True:
        process = start(CONFIG, tmp_path / "out", kill_at=kill_at)
        if process.wait(300) != -signal.SIGKILL:
            break
        killed += 1
        kill_at += killed % 3 == 0
    assert killed >= 6
    assert told(tmp_path / "out") == undisturbed


@pytest.mark.slow
def test_whoever_plays_for_a_job_that_is_gone_stops(tmp_path: Path) -> None:
    config = small(games=2000)
    process = start(config, tmp_path / "out", workers=2)
    until(lambda: len(journalled(tmp_path / "out")) > 4)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    gone, alive = psutil.wait_procs(workers, timeout=60)
    assert len(gone) >= 2
    assert not alive
    finished = journalled(tmp_path / "out")
    time.sleep(1.0)
    assert journalled(tmp_path / "out") == finished


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_no_room_for_a_longer_file(
    tmp_path: Path, undisturbed: dict[str, Any], workers: int
) -> None:
    process = start(CONFIG, tmp_path / "out", workers=workers, limit=60_000)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 2, said
    assert "File too large" in said
    assert "what was finished is kept" in said
    assert journalled(tmp_path / "out")
    explore(None, CONFIG, tmp_path / "out", workers=1)
    assert told(tmp_path / "out") == undisturbed
