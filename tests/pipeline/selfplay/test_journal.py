"""The parts of self-play on their own: settings, the journal's promises, and the command line."""

import json
import re
import socket
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import UserError
from pipeline.cli.main import main
from pipeline.selfplay.config import ExploreConfig, ExploreError
from pipeline.selfplay.job import explore
from pipeline.selfplay.journal import Journal, Watch, read_journals
from pipeline.selfplay.statistics import timing
from pipeline.selfplay.worker import Task, work_on
from tests.pipeline.selfplay.generations import records, searched, small


def entry(number: int) -> dict[str, object]:
    return {"record": {"number": number}, "searches": [], "pgn": "x\n" * number}


def test_settings_that_mean_nothing_are_refused() -> None:
    for changes, said in (
        ({"games": 0}, "games must be at least 1"),
        ({"count": 0}, "count must be at least 1"),
        ({"seed": 2**32}, "seed must be less than 4294967296"),
        ({"explorer": "nobody"}, "explorer must be 'network' or"),
        ({"device": "tpu"}, "device must be 'auto', 'cpu', 'cuda' or 'onnx'"),
        ({"draw_penalty": 1.5}, "draw_penalty must be at most 1"),
        ({"resign": 1.0}, "resign"),
    ):
        with pytest.raises(UserError, match=said):
            ExploreConfig(**changes)  # type: ignore[arg-type]


def test_a_network_explorer_needs_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ExploreError, match="needs a checkpoint"):
        explore(None, ExploreConfig(games=2), tmp_path / "out")
    with pytest.raises(UserError, match="holds no checkpoint"):
        explore(tmp_path, ExploreConfig(games=2), tmp_path / "out")
    with pytest.raises(UserError, match="name at least one"):
        explore(tmp_path, searched(), tmp_path / "out")
    with pytest.raises(UserError, match="games need no datasets: leave them out"):
        explore(None, small(), tmp_path / "out", datasets=[tmp_path])
    with pytest.raises(UserError, match="an engine is local, ray"):
        explore(None, small(), tmp_path / "out", engine="dask")
    with pytest.raises(UserError, match="workers must be 0 or more"):
        explore(None, small(), tmp_path / "out", workers=-1)
    assert not (tmp_path / "out").exists(), "a mistake leaves nothing behind"


def test_the_command_plays_by_the_engine_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys,
        "argv",
        ["fianchetto", "selfplay", "--out", str(tmp_path / "out"), "--engine", "abacus"],
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "an engine is local, ray" in capsys.readouterr().err


def test_a_player_that_does_not_see_the_journal_says_where(tmp_path: Path) -> None:
    journal = tmp_path / "elsewhere" / ".journal"
    task = Task(
        numbers=(0, 1),
        config=small(),
        checkpoint=None,
        journal=journal,
        run_file=journal / "go-on",
        owner=None,
    )
    with pytest.raises(
        ExploreError, match=f"{re.escape(socket.gethostname())} does not see .*elsewhere"
    ):
        work_on(task)


@settings(max_examples=50)
@given(cut=st.integers(0, 2000))
def test_a_journal_cut_anywhere_has_every_game_before_the_cut(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal = Journal(folder)
    ends = []
    for number in range(12):
        journal.add(entry(number))
        ends.append(journal.file.tell())
        if number == 6:
            journal.sync({"seconds": 1})
    journal.close()
    (path,) = folder.glob("*.jsonl")
    path.write_bytes(path.read_bytes()[:cut])
    found = read_journals(folder)
    assert set(found.places) == {number for number, end in enumerate(ends) if end <= cut}
    assert found.damaged <= 1
    for number, place in found.places.items():
        assert place.read() == entry(number)


def test_every_process_has_a_file_of_its_own_and_a_watcher_counts_all(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    first.add(entry(0))
    watch = Watch(tmp_path)
    second = Journal(tmp_path)
    for number in (1, 2):
        second.add(entry(number))
    first.add(entry(3))
    first.sync({"seconds": 2})
    first.file.write(b'{"record": {"num')
    first.file.flush()
    assert watch.count() == 3
    assert watch.count() == 3
    second.add(entry(4))
    assert watch.count() == 4
    first.close()
    second.close()
    found = read_journals(tmp_path)
    assert set(found.places) == {0, 1, 2, 3, 4}
    assert found.work == [{"seconds": 2}]
    assert found.damaged == 1


def test_time_is_counted_once_where_processes_play_side_by_side() -> None:
    work = [
        {"began": began, "ended": ended, "device": "cpu bfloat16"}
        for began, ended in ((100.0, 110.0), (105.0, 112.0), (300.0, 308.0), (301.0, 302.0))
    ]
    told = timing(work, 0)
    assert told["seconds"] == 20.0
    assert (told["devices"], told["processes"]) == (["cpu bfloat16"], 4)


def test_the_command_line_plays_and_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    words = [
        "fianchetto",
        "selfplay",
        "--out",
        str(out),
        "--explorer",
        "hand-written",
        "--games",
        "3",
        "--workers",
        "1",
    ]
    words += ["--width", "2", "--set", "most_plies=12", "--simulations", "4", "--json"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    assert ended.value.code == 0
    assert json.loads(captured.out)["selfplay"]["games"] == len(records(out)) == 3
    monkeypatch.setattr(sys, "argv", words[:-1])
    with pytest.raises(SystemExit):
        main()
    following = capsys.readouterr().out.splitlines()[-1]
    assert (
        following
        == f"next: fianchetto train --positions {out} --minutes 15 --out datasets/checkpoints/out"
    )
    monkeypatch.setattr(sys, "argv", [*words, "--seed", "2"])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert captured.err.count("\n") == 1
    assert "config.seed was 0, not 2" in captured.err
