"""A generation that is killed, anywhere and again and again, loses no finished game and ends with
the same files."""

import random
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.errors import Stopped
from pipeline.executors import local
from pipeline.selfplay.config import ExploreError
from pipeline.selfplay.job import explore
from tests.model.test_checkpoint import make
from tests.pipeline import datasets
from tests.pipeline.selfplay.generations import journalled, small, start, told
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
