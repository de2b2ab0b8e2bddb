"""Self-play in Ray's processes: the same games, whoever dies. Slow; needs fianchetto[ray]."""

import importlib.util
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from engine.progress import Tick
from pipeline.errors import Stopped
from pipeline.selfplay.config import ExploreError
from pipeline.selfplay.job import explore
from tests.conftest import REPOSITORY
from tests.model.test_checkpoint import make
from tests.pipeline.selfplay.generations import journalled, small, start, told

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: fianchetto[ray]"
    ),
]

CONFIG = small(games=3000)


def players(driver: int | None = None) -> list[psutil.Process]:
    """Give Ray's workers below a process, this one, that play: Ray writes the function's name as
    their title."""
    found = []
    for child in psutil.Process(driver).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # one that has just ended; a zombie is one of these
            if "ray::_work" in " ".join(child.cmdline()):
                found.append(child)
    return found


def test_ray_plays_the_games_that_local_processes_play(tmp_path: Path) -> None:
    explore(None, CONFIG, tmp_path / "local", workers=2)
    ticks: list[Tick] = []
    played: set[psutil.Process] = set()

    def look(tick: Tick) -> None:
        ticks.append(tick)
        played.update(players())

    manifest = explore(None, CONFIG, tmp_path / "ray", engine="ray", workers=2, progress=look)
    assert told(tmp_path / "ray") == told(tmp_path / "local")
    assert manifest["selfplay"]["timing"]["processes"] == 2
    assert ticks[-1].done == CONFIG.games
    assert len(played) == 2
    assert not any(player.is_running() for player in played), (
        "a Ray of one's own is gone when its work is done"
    )


def test_a_player_that_is_killed_is_replaced_and_no_game_differs(tmp_path: Path) -> None:
    explore(None, CONFIG, tmp_path / "undisturbed", workers=1)
    killed: list[int] = []

    def kill(tick: Tick) -> None:
        if 0 < tick.done < CONFIG.games - 20 and not killed and (running := players()):
            running[0].send_signal(signal.SIGKILL)
            killed.append(running[0].pid)

    manifest = explore(None, CONFIG, tmp_path / "killed", engine="ray", workers=2, progress=kill)
    assert len(killed) == 1
    assert told(tmp_path / "killed") == told(tmp_path / "undisturbed")
    assert manifest["selfplay"]["games"] == CONFIG.games


def test_a_checkpoint_named_from_here_is_found_by_the_players(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "net")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.chdir(tmp_path)
    config = small(games=4, explorer="network", most_plies=6, device="cpu")
    explore(Path("net"), config, Path("out"), engine="ray", workers=2)
    explore(Path("net"), config, Path("alone"), workers=2)
    assert (tmp_path / "out" / "games.pgn").read_bytes() == (
        tmp_path / "alone" / "games.pgn"
    ).read_bytes()


def test_a_node_without_fianchetto_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    if (
        subprocess.run(
            [sys.executable, "-c", "import pipeline"], capture_output=True, check=False
        ).returncode
        == 0
    ):
        pytest.skip("Fianchetto is installed beside Ray, and so on its nodes")
    with pytest.raises(ExploreError, match=r"a node cannot run this: .*No module named 'pipeline'"):
        explore(None, CONFIG, tmp_path / "out", engine="ray", workers=1)


def test_a_stop_ends_the_players_and_the_same_command_goes_on(tmp_path: Path) -> None:
    explore(None, CONFIG, tmp_path / "whole", workers=2)
    out = tmp_path / "out"
    began = time.monotonic()
    with pytest.raises(Stopped, match="run the same command to continue"):
        explore(None, CONFIG, out, engine="ray", workers=2, stop=lambda: len(journalled(out)) > 20)
    assert time.monotonic() - began < 120
    assert 20 < len(journalled(out)) < CONFIG.games
    explore(None, CONFIG, out, engine="ray", workers=2)
    assert told(out) == told(tmp_path / "whole")


def test_players_of_a_driver_that_is_killed_are_gone(tmp_path: Path) -> None:
    process = start(small(games=20_000), tmp_path / "out", workers=2, engine="ray")
    until = time.monotonic() + 120
    while len(journalled(tmp_path / "out")) < 5 and time.monotonic() < until:
        time.sleep(0.1)
    playing = players(process.pid)
    assert len(playing) == 2
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(playing, timeout=60)
    assert not alive
    finished = journalled(tmp_path / "out")
    time.sleep(1.0)
    assert journalled(tmp_path / "out") == finished
