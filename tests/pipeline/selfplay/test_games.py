"""A generation of games as a dataset: its rows equal those ingested from its PGN, python-chess
agrees with the rest, and stops, kills and damage change nothing."""

import io
import json
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.encoding.planes import label_from_move, move_from_label
from engine.errors import UserError
from engine.progress import Tick
from engine.selfplay import generate
from pipeline.dataset.files.manifest import read_manifest
from pipeline.dumps.source import find_dumps
from pipeline.errors import Stopped
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.selfplay.config import VALIDATION_SHARE, ExploreConfig, ExploreError
from pipeline.selfplay.job import explore
from pipeline.selfplay.worker import Journal, JournalCounter, Task, read_journals, run_task
from pipeline.validation.verify import compare_files, verify_dataset
from tests.conftest import REPOSITORY
from tests.model.test_checkpoint import make
from tests.pipeline import datasets
from tests.pipeline.cli.conftest import invoke
from tests.pipeline.selfplay.generations import journaled_items, records, searched, small, start
from tests.pipeline.storage.jobs import content
from tests.waiting import until

CONFIG = small()
SEARCH_COLUMNS = ("visits", "root_value", "best_value", "simulations")


@pytest.fixture(scope="module", autouse=True)
def resigning() -> Iterator[None]:
    """Let players resign early; half of the games continue without resignation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "MIN_RESIGN_PLIES", 10)
        patch.setattr(generate, "RESIGN_DISABLED_SHARE", 0.5)
        yield


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Play a generation without interruption in this process; return its folder."""
    out = tmp_path_factory.mktemp("selfplay") / "generation"
    ticks: list[Tick] = []
    explore(None, CONFIG, out, lineage={"loop": "test"}, workers=1, progress=ticks.append)
    assert [tick.done for tick in ticks] == list(range(1, CONFIG.games + 1))
    return out


def boards(record: dict[str, Any]) -> list[chess.Board]:
    """Return the positions of a game by python-chess, including the last one."""
    board = chess.Board()
    positions = [board.copy()]
    for uci in record["moves"]:
        board.push_uci(uci)  # raises an error for an illegal move
        positions.append(board.copy())
    return positions


def test_rows_equal_those_that_ingest_makes_from_the_games_pgn(
    generation: Path, tmp_path: Path
) -> None:
    assert compare_files(generation) == []
    config, ingested = IngestConfig(val_share=VALIDATION_SHARE, test_share=0.0), tmp_path / "again"
    ingest([str(generation / "games.pgn")], ingested, config, workers=1)
    expected = {(row["game"], row["ply"]): row for row in datasets.table(ingested).to_pylist()}
    rows = datasets.table(generation).to_pylist()
    assert len(rows) == read_manifest(generation)["selfplay"]["searched"] > 100
    assert {row["game"] for row in rows} == {game for game, _ in expected}
    for row in rows:
        assert row["eval"] is None, "a search's value is not an engine evaluation"
        other = expected[row["game"], row["ply"]]
        assert row == other | {name: row[name] for name in SEARCH_COLUMNS}
        assert other["visits"] is None
    assert datasets.games(generation) == datasets.games(ingested)


def test_visits_are_on_legal_moves(generation: Path) -> None:
    games = records(generation)
    assert [record["number"] for record in games] == list(range(CONFIG.games))
    positions = [boards(record) for record in games]
    rows, played_share = datasets.table(generation).to_pylist(), 0.0
    for row in rows:
        board, record = positions[row["game"]][row["ply"]], games[row["game"]]
        move = move_from_label(row["label"], row["promotion"], board.turn)
        assert move.uci() == record["moves"][row["ply"]]
        result = {"1-0": 1, "0-1": -1, "1/2-1/2": 0}[record["result"]]
        assert row["result"] == (result if board.turn else -result)
        legal = {label_from_move(move, board.turn) for move in board.legal_moves}
        shares = {entry["label"]: entry["share"] for entry in row["visits"]}
        assert len(row["visits"]) == len(shares) > 0
        assert shares.keys() <= legal
        assert sum(shares.values()) == pytest.approx(1.0, abs=1e-5)
        assert min(shares.values()) > 0.0
        assert -1.0 <= row["root_value"] <= 1.0
        assert -1.0 <= row["best_value"] <= 1.0
        played_share += shares.get(row["label"], 0.0)
    assert played_share / len(rows) > 0.1


def test_results_endings_and_statistics_equal_python_chess(generation: Path) -> None:
    endings: Counter[str] = Counter()
    games = records(generation)
    for record in games:
        last = boards(record)[-1]
        outcome = last.outcome(claim_draw=True)
        if record["ending"] in ("resignation", "too long"):
            assert not last.is_checkmate()
            assert record["ending"] == "resignation" or len(record["moves"]) == CONFIG.most_plies
            lost = "0-1" if last.turn else "1-0"
            assert record["result"] == (lost if record["ending"] == "resignation" else "1/2-1/2")
        else:
            assert outcome is not None
            assert record["result"] == outcome.result()
        if record["resign_ply"] is not None:
            loser = boards(record)[record["resign_ply"]].turn
            assert record["resign_was_wrong"] == (record["result"] != ("0-1" if loser else "1-0"))
        endings[record["ending"]] += 1
    manifest = read_manifest(generation)
    played = manifest["selfplay"]
    assert played["endings"] == dict(endings)
    assert played["resignations"] == endings["resignation"] > 0
    assert played["played_on"] == sum(game["resign_ply"] is not None for game in games) > 0
    assert played["false_resignations"] == sum(game["resign_was_wrong"] for game in games)
    decisive = np.mean([game["result"] != "1/2-1/2" for game in games])
    assert played["decisive_share"] == pytest.approx(decisive, abs=1e-6)
    assert manifest["positions"]["total"] == played["searched"]
    plies = np.mean([len(game["moves"]) for game in games])
    assert played["mean_plies"] == pytest.approx(plies, abs=1e-3)
    assert played["timing"]["seconds"] > 0


def test_python_chess_reads_the_pgn_with_a_value_for_every_search(generation: Path) -> None:
    text = io.StringIO((generation / "games.pgn").read_text())
    searches = Counter(datasets.table(generation)["game"].to_pylist())
    for number, record in enumerate(records(generation)):
        game = chess.pgn.read_game(text)
        assert game is not None
        assert game.errors == []
        assert [move.uci() for move in game.mainline_moves()] == record["moves"]
        assert game.headers["Result"] == record["result"]
        assert game.headers["Site"].endswith(f"/0-{number}")
        comments = [node.comment for node in game.mainline()]
        values = re.findall(r"%value (\S+)\]", " ".join(comments))
        assert len(values) == searches[number]
        assert all(-1.0 <= float(value) <= 1.0 for value in values)
        assert all(node.eval() is None for node in game.mainline()), "values are not centipawns"
    assert chess.pgn.read_game(text) is None
    assert {row["event"] for row in datasets.games(generation)} == {"self-play of hand-written"}


def test_a_draw_penalty_lowers_the_values_of_drawn_games(generation: Path, tmp_path: Path) -> None:
    explore(None, small(draw_penalty=0.1, games=8), tmp_path, workers=1)
    is_drawn = [record["result"] == "1/2-1/2" for record in records(generation)]
    unchanged = {(row["game"], row["ply"]): row for row in datasets.table(generation).to_pylist()}
    rows = datasets.table(tmp_path).to_pylist()
    for row in rows:
        before = unchanged[row["game"], row["ply"]]
        for name in ("root_value", "best_value"):
            expected = before[name] - 0.1 * is_drawn[row["game"]]
            assert row[name] == pytest.approx(max(expected, -1.0), abs=2e-6)
        assert row["result"] == before["result"]
    assert sum(is_drawn[row["game"]] for row in rows) > 10


def test_verify_replays_the_rows_from_the_games(generation: Path, tmp_path: Path) -> None:
    dumps = find_dumps(generation, read_manifest(generation))
    assert dumps == [str(generation / "games.pgn")]
    result = verify_dataset(generation, dumps, rows=16)
    assert [result[name] for name in ("files", "splits", "source", "rows")] == [[], [], [], []]
    assert result["compared"] == 16


def test_a_stopped_and_damaged_run_ends_with_the_same_files(
    generation: Path, tmp_path: Path
) -> None:
    out, ticks = tmp_path / "out", [0]
    options: Any = {"lineage": {"loop": "test"}, "workers": 1}
    for count in (3, 12):
        with pytest.raises(Stopped, match="of 24 games; run the same command to continue"):
            explore(
                None,
                CONFIG,
                out,
                progress=lambda tick: ticks.append(tick.done),
                stop=lambda: ticks[-1] >= count,  # noqa: B023
                **options,
            )
        assert len(journaled_items(out)) >= count
    path = max((out / ".journal").glob("*.jsonl"), key=lambda path: path.stat().st_size)
    lines = path.read_bytes().splitlines(keepends=True)
    games = [number for number, line in enumerate(lines) if b'"searches"' in line]
    lines[games[1]] = lines[games[1]].replace(b'"searches"', b'"se\xffrches"')
    lines[games[3]] = lines[games[3]].replace(b"1. ", b"7. ")
    path.write_bytes(b"".join(lines)[:-40])
    ticks, finished = [], len(read_journals(out / ".journal").finished)
    explore(None, CONFIG, out, progress=lambda tick: ticks.append(tick.done), **options)
    assert ticks == list(range(finished + 1, CONFIG.games + 1)), "only the missing games are played"
    assert content(out) == content(generation)
    figures = read_manifest(out)["selfplay"]["timing"]
    assert figures["damaged_lines"] == 3
    assert figures["seconds"] > 0
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert explore(None, CONFIG, out, **options) == read_manifest(out)
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before


@settings(max_examples=50)
@given(cut=st.integers(0, 2000))
def test_a_truncated_journal_has_every_game_before_the_cut(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal, counter, ends = Journal(folder, "cpu"), JournalCounter(folder), []
    entries = [{"record": {"number": at}, "searches": [], "pgn": "x\n" * at} for at in range(12)]
    for entry in entries:
        journal.add(entry)
        ends.append(journal.file.tell())
    assert counter.count() == counter.count() == 12
    journal.close()
    (path,) = folder.glob("*.jsonl")
    path.write_bytes(path.read_bytes()[:cut])
    journals = read_journals(folder)
    assert set(journals.finished) == {number for number, end in enumerate(ends) if end <= cut}
    assert journals.damaged_lines <= 1
    assert all(line.read() == entries[number] for number, line in journals.finished.items())


@pytest.mark.slow
def test_workers_of_a_dead_job_stop(tmp_path: Path) -> None:
    process = start(2000, tmp_path / "out")
    until(lambda: len(journaled_items(tmp_path / "out")) > 4)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    gone, alive = psutil.wait_procs(workers, timeout=60)
    assert len(gone) >= 2
    assert not alive
    finished = journaled_items(tmp_path / "out")
    time.sleep(1.0)
    assert journaled_items(tmp_path / "out") == finished


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: fianchetto[ray]")
def test_ray_plays_the_same_games_as_local_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "net")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.chdir(tmp_path)
    config = small(games=4, explorer="network", most_plies=6, device="cpu")
    explore(Path("net"), config, Path("ray"), engine="ray", workers=2)
    explore(Path("net"), config, Path("local"), workers=2)
    assert content(tmp_path / "ray") == content(tmp_path / "local")


def test_wrong_settings_write_nothing(tmp_path: Path) -> None:
    games, out = ExploreConfig(games=2), tmp_path / "out"
    cases: list[tuple[Path | None, ExploreConfig, dict[str, Any], str]] = [
        (None, games, {}, "needs a checkpoint"),
        (tmp_path, games, {}, "holds no checkpoint"),
        (tmp_path, searched(), {}, "people needs datasets: name them with --reanalyse"),
        (None, small(), {"datasets": [tmp_path]}, "games needs no datasets: remove --reanalyse"),
        (None, small(), {"engine": "dask"}, "unknown engine"),
    ]
    for checkpoint, config, options, message in cases:
        with pytest.raises(UserError, match=message):
            explore(checkpoint, config, out, **options)
    assert not out.exists()
    paths = {"checkpoint": None, "journal": tmp_path / "elsewhere", "run_file": tmp_path}
    task = Task(numbers=(0, 1), config=small(), owner=None, **paths)
    with pytest.raises(ExploreError, match=f"{re.escape(socket.gethostname())} cannot access"):
        run_task(task)


def test_a_network_plays_and_another_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "one", seed=1)
    make(tmp_path / "two", seed=2)
    config = small(games=2, explorer="network", most_plies=4, sampled_plies=0, device="cpu")
    explore(tmp_path / "one", config, tmp_path / "out", workers=1)
    with pytest.raises(ExploreError, match=r"checkpoint.weights_sha256 was '[0-9a-f]{64}', not"):
        explore(tmp_path / "two", config, tmp_path / "out", workers=1)
    (tmp_path / "one").rename(tmp_path / "moved")
    explore(tmp_path / "moved", config, tmp_path / "out", workers=1)


def test_the_command_line_plays_and_reports_mistakes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = f"selfplay --out {out} --explorer hand-written --games 3 --workers 1 --width 2"
    words = f"{command} --set most_plies=12 --simulations 4".split()
    code, printed, _ = invoke(*words, "--json")
    assert code == 0
    assert json.loads(printed)["selfplay"]["games"] == len(records(out)) == 3
    _, printed, _ = invoke(*words)
    assert "complete already: nothing was done" in printed
    assert f"next: fianchetto train --positions {out} --minutes 15" in printed
    code, _, error = invoke(*words, "--seed", "2")
    assert (code, error.count("\n")) == (2, 1)
    assert "config.seed was 0, not 2" in error
