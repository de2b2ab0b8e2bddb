"""A generation of self-play is a dataset: its rows are those of its own PGN, and python-chess
agrees with the rest."""

import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import numpy as np
import pytest

from engine.encoding.planes import label_of, move_of
from engine.progress import Tick
from engine.selfplay import generate
from pipeline.dataset.batches import HUMAN_COLUMNS, Batches
from pipeline.dataset.files.shards import read_manifest
from pipeline.dumps.paths import dumps_of
from pipeline.errors import Stopped
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.selfplay.config import VAL_SHARE
from pipeline.selfplay.job import explore
from pipeline.validation.verify import files_differ, verify_dataset
from tests.pipeline import datasets
from tests.pipeline.selfplay.generations import journalled, records, small, told

CONFIG = small()
SEARCH = ("visits", "root_value", "best_value", "simulations")


@pytest.fixture(scope="module", autouse=True)
def resigning() -> Iterator[None]:
    """Let games resign early, and half of them play on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "RESIGN_PLIES", 10)
        patch.setattr(generate, "RESIGN_DISABLED_SHARE", 0.5)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Play a generation, undisturbed, in this process."""
    out = tmp_path_factory.mktemp("selfplay") / "made"
    ticks: list[Tick] = []
    explore(None, CONFIG, out, lineage={"loop": "test"}, workers=1, progress=ticks.append)
    assert [tick.done for tick in ticks] == list(range(1, CONFIG.games + 1))
    return out


def boards(record: dict[str, Any]) -> list[chess.Board]:
    """Give the positions of a game, the last one too, by python-chess."""
    board = chess.Board()
    found = [board.copy()]
    for uci in record["moves"]:
        assert chess.Move.from_uci(uci) in board.legal_moves
        board.push_uci(uci)
        found.append(board.copy())
    return found


def test_a_generation_is_a_whole_dataset_and_nothing_else_is_left(made: Path) -> None:
    assert files_differ(made) == []
    names = {path.name for path in made.iterdir() if not path.name.endswith(".parquet")}
    assert names == {
        ".lock",
        "CARD.md",
        "job.json",
        "games.jsonl",
        "games.pgn",
        "manifest.json",
    }
    assert [record["number"] for record in records(made)] == list(range(CONFIG.games))


def test_rows_are_what_ingest_makes_of_the_games_own_pgn(made: Path, tmp_path: Path) -> None:
    same = IngestConfig(val_share=VAL_SHARE, test_share=0.0)
    ingest([str(made / "games.pgn")], tmp_path / "again", same, workers=1)
    again = {
        (row["game"], row["ply"]): row for row in datasets.table(tmp_path / "again").to_pylist()
    }
    mine = datasets.table(made).to_pylist()
    games = {row["game"]: row["plies"] for row in again.values()}
    assert len(mine) == read_manifest(made)["selfplay"]["searched"] > 100
    assert {row["game"] for row in mine} == games.keys()
    for row in mine:
        other = again[row["game"], row["ply"]]
        assert {name: value for name, value in row.items() if name not in SEARCH} == {
            name: value for name, value in other.items() if name not in SEARCH
        }
        assert other["visits"] is None
        assert row["eval"] is None, (
            "a search's value is no engine's evaluation, in which a training would read it"
        )
    assert datasets.games(made) == datasets.games(tmp_path / "again")
    assert {split for split, count in read_manifest(made)["positions"].items() if count} == {
        "total",
        *same_splits(mine),
    }


def same_splits(rows: list[dict[str, Any]]) -> set[str]:
    """Give the splits that rows are in, each game in one."""
    of_game: dict[int, set[str]] = {}
    for row in rows:
        of_game.setdefault(row["game"], set()).add(row["split"])
    assert all(len(splits) == 1 for splits in of_game.values())
    return set.union(*of_game.values())


def test_what_was_thought_stands_on_legal_moves_of_its_position(made: Path) -> None:
    games = {record["number"]: boards(record) for record in records(made)}
    rows = datasets.table(made).to_pylist()
    sharp = 0.0
    for row in rows:
        board = games[row["game"]][row["ply"]]
        legal = {label_of(move, board.turn) for move in board.legal_moves}
        labels = [entry["label"] for entry in row["visits"]]
        assert len(set(labels)) == len(labels) > 0
        assert set(labels) <= legal
        assert sum(entry["share"] for entry in row["visits"]) == pytest.approx(1.0, abs=1e-5)
        assert min(entry["share"] for entry in row["visits"]) > 0.0
        assert -1.0 <= row["root_value"] <= 1.0
        assert -1.0 <= row["best_value"] <= 1.0
        sharp += dict(zip(labels, [entry["share"] for entry in row["visits"]], strict=True)).get(
            row["label"], 0.0
        )
    assert sharp / len(rows) > 0.1, "the moves that are played have a share worth speaking of"


def test_results_endings_and_statistics_are_python_chesss(made: Path) -> None:
    endings: Counter[str] = Counter()
    for record in records(made):
        last = boards(record)[-1]
        outcome = last.outcome(claim_draw=True)
        if record["ending"] in ("resignation", "too long"):
            assert not last.is_checkmate()
            assert record["ending"] == "resignation" or len(record["moves"]) == CONFIG.most_plies
            loses = {"resignation": "0-1" if last.turn else "1-0", "too long": "1/2-1/2"}[
                record["ending"]
            ]
            assert record["result"] == loses
        else:
            assert outcome is not None
            assert record["result"] == outcome.result()
        if record["resign_ply"] is not None:
            loser = boards(record)[record["resign_ply"]].turn
            assert record["resign_was_wrong"] == (record["result"] != ("0-1" if loser else "1-0"))
        endings[record["ending"]] += 1
    manifest = read_manifest(made)
    played = manifest["selfplay"]
    assert played["endings"] == dict(endings)
    assert played["resignations"] == endings["resignation"] > 0
    assert (
        played["played_on"] == sum(record["resign_ply"] is not None for record in records(made)) > 0
    )
    assert played["false_resignations"] == sum(
        record["resign_was_wrong"] for record in records(made)
    )
    assert played["decisive_share"] == pytest.approx(
        sum(record["result"] != "1/2-1/2" for record in records(made)) / CONFIG.games, abs=1e-6
    )
    assert manifest["positions"]["total"] == played["searched"]
    assert played["mean_plies"] == pytest.approx(
        np.mean([len(record["moves"]) for record in records(made)]), abs=1e-3
    )
    assert played["timing"]["seconds"] > 0


def test_the_pgn_is_read_by_python_chess_with_an_evaluation_of_every_search(made: Path) -> None:
    text, rows = io.StringIO((made / "games.pgn").read_text()), datasets.table(made).to_pylist()
    for number, record in enumerate(records(made)):
        game = chess.pgn.read_game(text)
        assert game is not None
        assert game.errors == []
        assert [move.uci() for move in game.mainline_moves()] == record["moves"]
        assert game.headers["Result"] == record["result"]
        assert game.headers["Site"].endswith(f"/0-{number}")
        values = [
            float(found[1])
            for node in game.mainline()
            if (found := re.search(r"%value (\S+)\]", node.comment))
        ]
        assert len(values) == sum(row["game"] == number for row in rows)
        assert all(-1.0 <= value <= 1.0 for value in values)
        assert all(node.eval() is None for node in game.mainline()), (
            "no program takes them for centipawns"
        )
    assert chess.pgn.read_game(text) is None
    assert {row["event"] for row in datasets.games(made)} == {"self-play of hand-written"}


def test_batches_hold_what_was_thought(made: Path) -> None:
    batches = Batches(
        [made], "train", batch_size=32, columns=[*HUMAN_COLUMNS, "visits", "root_value"]
    )
    rows = {
        (row["game"], row["ply"]): row
        for row in datasets.table(made).to_pylist()
        if row["split"] == "train"
    }
    assert batches.rows == len(rows)
    batch = next(batches.read_rows())
    assert len(batch["visits"]) == 32
    for index in range(32):
        row = rows[int(batch["game"][index]), int(batch["ply"][index])]
        assert batch["planes"][index].tobytes() == row["planes"]
        entries = [
            {"label": int(one["label"]), "share": float(one["share"])}
            for one in batch["visits"][index]
        ]
        assert entries == row["visits"]
        assert batch["root_value"][index] == np.float32(row["root_value"])
    assert len(next(Batches([made], "train", batch_size=32).from_step(0))["planes"]) == 32


def test_a_finished_generation_is_given_as_it_is(made: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in made.iterdir()}
    manifest = explore(None, CONFIG, made, lineage={"loop": "test"}, workers=1)
    assert manifest == read_manifest(made)
    assert manifest["lineage"]["loop"] == "test"
    assert {path.name: path.stat().st_mtime_ns for path in made.iterdir()} == before


def test_stopped_and_continued_is_the_same_as_played_at_once(made: Path, tmp_path: Path) -> None:
    for games in (3, 9, 17):
        ticks: list[Tick] = []
        with pytest.raises(Stopped, match=r"of 24 games; run the same command to continue"):
            explore(
                None,
                CONFIG,
                tmp_path / "out",
                lineage={"loop": "test"},
                workers=1,
                progress=ticks.append,
                stop=lambda wanted=games, ticks=ticks: bool(ticks) and ticks[-1].done >= wanted,  # type: ignore[misc]
            )
        assert len(journalled(tmp_path / "out")) >= games
    explore(None, CONFIG, tmp_path / "out", lineage={"loop": "test"}, workers=1)
    assert told(tmp_path / "out") == told(made)
    timing = read_manifest(tmp_path / "out")["selfplay"]["timing"]
    assert timing["processes"] == 4


def test_games_of_another_seed_are_others(made: Path, tmp_path: Path) -> None:
    explore(None, small(games=6, seed=1), tmp_path / "out", workers=1)
    games = {json.dumps(record["moves"]) for record in records(made)}
    assert not games & {json.dumps(record["moves"]) for record in records(tmp_path / "out")}


def test_a_draw_penalty_lowers_the_values_of_drawn_games(tmp_path: Path) -> None:
    explore(None, small(games=12, most_plies=30, resign=0.0), tmp_path / "usual", workers=1)
    explore(
        None,
        small(games=12, most_plies=30, resign=0.0, draw_penalty=0.1),
        tmp_path / "other",
        workers=1,
    )
    drawn = {
        record["number"]: record["result"] == "1/2-1/2" for record in records(tmp_path / "usual")
    }
    rows = (
        datasets.table(tmp_path / "usual").to_pylist(),
        datasets.table(tmp_path / "other").to_pylist(),
    )
    for before, after in zip(*rows, strict=True):
        for name in ("root_value", "best_value"):
            wanted = before[name] - 0.1 * drawn[before["game"]]
            assert after[name] == pytest.approx(max(wanted, -1.0), abs=2e-6)
        assert after["result"] == before["result"]
    assert sum(drawn[row["game"]] for row in rows[0]) > 50


def test_a_label_of_a_row_is_the_move_that_was_played(made: Path) -> None:
    games = {record["number"]: (boards(record), record) for record in records(made)}
    for row in datasets.table(made).to_pylist():
        positions, record = games[row["game"]]
        move = move_of(row["label"], row["promotion"], positions[row["ply"]].turn)
        assert move.uci() == record["moves"][row["ply"]]
        result = {"1-0": 1, "0-1": -1, "1/2-1/2": 0}[record["result"]]
        assert row["result"] == (result if positions[row["ply"]].turn else -result)


def test_verify_finds_a_generations_own_games_and_replays_its_rows(
    made: Path, tmp_path: Path
) -> None:
    manifest = read_manifest(made)
    dumps = dumps_of(made, manifest)
    assert dumps == [str(made / "games.pgn")]
    found = verify_dataset(made, dumps, rows=16)
    assert [found[name] for name in ("files", "splits", "source", "rows")] == [[], [], [], []]
    assert found["compared"] == 16
    changed = tmp_path / "games.pgn"
    changed.write_bytes(
        (made / "games.pgn").read_bytes().replace(b'"1-0"', b'"0-1"').replace(b" 1-0\n", b" 0-1\n")
    )
    found = verify_dataset(made, [str(changed)], rows=2000)
    assert found["source"]
    assert any("result is" in problem for problem in found["rows"])
