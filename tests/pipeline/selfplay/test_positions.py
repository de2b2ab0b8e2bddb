"""A generation of searched positions as a dataset: rows of human games or a few moves away from
them, moves that are legal by python-chess, the same result after any stop."""

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest

from engine.board.position import from_fen, to_board
from engine.encoding.planes import label_from_move, move_from_label
from engine.encoding.views import LAST_MOVES, NO_LABEL
from engine.errors import UserError
from engine.evaluation.evaluator import uniform
from engine.progress import Tick, never, silent
from engine.search import SearchConfig
from model.inference.onnx_evaluator import OnnxError
from model.network.presets import preset
from pipeline.dataset.batches import Batches
from pipeline.dataset.files.stored_planes import rows_to_positions
from pipeline.errors import Stopped
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.selfplay import draw
from pipeline.selfplay.config import ExploreConfig, ExploreError
from pipeline.selfplay.job import explore
from pipeline.selfplay.worker import search_group
from pipeline.storage.stores import hash_file
from pipeline.validation.verify import compare_files
from tests.conftest import REPOSITORY
from tests.model.test_checkpoint import make
from tests.pipeline import datasets
from tests.pipeline.selfplay.generations import prepare, searched
from tests.pipeline.storage.jobs import content

CONFIG = searched()
COPIED = (
    "planes", "label", "promotion", "result", "eval", "plies", "castling", "ep_file", "halfmove",
    "elo", "opponent_elo", "clock", "base", "increment", *LAST_MOVES,
)  # fmt: skip
"""Columns that a searched row copies from its dataset."""


def reanalyse(
    sources: tuple[Path, Path], config: ExploreConfig, out: Path, **options: Any
) -> dict[str, Any]:
    """Search positions of a dataset; `sources` are the folders of the checkpoint and dataset."""
    return explore(sources[0], config, out, datasets=[sources[1]], **{"workers": 1, **options})


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a checkpoint and a dataset; return their folders."""
    return prepare(tmp_path_factory.mktemp("reanalyse"))


@pytest.fixture(scope="module")
def generation(sources: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Search positions without interruption in this process; return the new dataset."""
    out = tmp_path_factory.mktemp("generation") / "out"
    ticks: list[Tick] = []
    reanalyse(sources, CONFIG, out, lineage={"loop": "test"}, progress=ticks.append)
    assert [tick.done for tick in ticks if tick.unit == "positions"] == list(range(4, 41, 4))
    assert ticks[-1].values["positions/h"] > 0
    return out


def boards_of(positions: Path) -> dict[tuple[int, int], chess.Board]:
    """Replay a dataset's games by python-chess; return the boards by game identity and ply."""
    identities, boards = [game["identity"] for game in datasets.games(positions)], {}
    for game, rows in datasets.rows_by_game(positions).items():
        board = chess.Board()
        for row in rows:
            boards[identities[game], row["ply"]] = board.copy()
            board.push(move_from_label(row["label"], row["promotion"], board.turn))
    return boards


def is_mate(board: chess.Board, move: chess.Move) -> bool:
    board.push(move)
    result = board.is_checkmate()
    board.pop()
    return result


def test_rows_equal_the_datasets_rows_and_visits_are_legal(
    generation: Path, sources: tuple[Path, Path]
) -> None:
    assert compare_files(generation) == []
    boards, games = boards_of(sources[1]), datasets.games(generation)
    identities = [game["identity"] for game in datasets.games(sources[1])]
    originals = {
        (identities[row["game"]], row["ply"]): row for row in datasets.table(sources[1]).to_pylist()
    }
    rows = datasets.table(generation).to_pylist()
    assert len(rows) == len({row["game"] for row in rows}) == 40
    assert all(row["last_move"] is not None for row in rows)
    for row in rows:
        game = games[row["game"]]
        other, board = originals[game["identity"], row["ply"]], boards[game["identity"], row["ply"]]
        assert other["split"] == game["split"] == row["split"] == "train"
        assert {name: row[name] for name in COPIED} == {name: other.get(name) for name in COPIED}
        legal = {label_from_move(move, board.turn) for move in board.legal_moves}
        assert {entry["label"] for entry in row["visits"]} <= legal
        assert sum(entry["share"] for entry in row["visits"]) == pytest.approx(1.0, abs=1e-5)
        assert -1 <= row["root_value"] <= 1
        assert -1 <= row["best_value"] <= 1
        if any(is_mate(board, move) for move in board.legal_moves):
            assert row["root_value"] == row["best_value"] == 1.0
        else:
            assert row["simulations"] == 12
    manifest = datasets.manifest(generation)
    card = json.loads((sources[0] / "checkpoint.json").read_text())
    assert manifest["lineage"]["checkpoint"]["weights_sha256"] == card["files"]["weights"]["sha256"]
    assert manifest["lineage"]["datasets"][0]["name"] == "positions"
    assert manifest["sources"] == datasets.manifest(sources[1])["sources"]
    figures = manifest["selfplay"]
    assert figures["searched"] + figures["over"] == 40
    assert manifest["positions"]["train"] == manifest["positions"]["total"] == figures["searched"]
    assert sum(figures["phases"].values()) == 40
    assert 0 < figures["best_move_changed"] <= 1


@pytest.mark.parametrize(
    ("fen", "changed"),
    [("7k/R7/8/8/8/8/8/1R5K w - - 0 1", 0), ("7k/8/8/8/8/8/1R6/R6K w - - 0 1", 1)],
)
def test_a_mate_in_one_does_not_count_as_a_changed_move(fen: str, changed: int) -> None:
    # enough simulations to find the mate in two although the evaluator knows nothing
    search = SearchConfig(simulations=2000, policy_temperature=1.0, c_stdev=0.0)
    config = replace(CONFIG, explorer="hand-written", width=1, search=search)
    entry = search_group(uniform, config, from_fen(fen)[None], 0, never)
    assert entry is not None
    assert entry["record"]["changed"] == changed


def test_two_processes_with_a_network_and_compact_planes_give_the_same_rows(
    generation: Path, sources: tuple[Path, Path], tmp_path: Path
) -> None:
    """Also with another order of the dataset's rows."""
    config = IngestConfig(val_share=0.1, test_share=0.1, planes="compact", seed=7)
    ingest([str(sources[1].parent / "games.pgn")], tmp_path / "compact", config, workers=1)
    reanalyse((sources[0], tmp_path / "compact"), CONFIG, tmp_path / "out", workers=2)
    assert datasets.table(tmp_path / "out").equals(datasets.table(generation))
    assert datasets.manifest(tmp_path / "out")["selfplay"]["timing"]["processes"] == 2


def test_several_positions_of_a_game_are_drawn_if_needed(
    sources: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw, "PHASE_SHARES", {"opening": 1.0, "middlegame": 1e-9, "endgame": 1e-9})
    monkeypatch.setattr(draw, "MIN_PLY", 4)
    monkeypatch.setattr(draw, "DECIDED_WEIGHT", 1e-9)
    games = sum(game["split"] == "train" for game in datasets.games(sources[1]))
    reanalyse(sources, searched(count=3 * games - 10, width=64), tmp_path / "out")
    rows = datasets.table(tmp_path / "out").to_pylist()
    assert 2 * games < len(rows) <= 3 * games
    assert np.mean([row["ply"] < 20 for row in rows]) > 0.9
    # of the sixteen openings of a game, three are drawn; a third are undecided (the evaluations are
    # random, up to 9 pawns) and drawn first
    assert np.mean([abs(row["eval"]) < 300 for row in rows]) > 0.8
    assert len({row["planes"] for row in rows}) == len(rows), "no position twice"


def test_a_stopped_run_can_be_used_or_continued(
    generation: Path, sources: tuple[Path, Path], tmp_path: Path
) -> None:
    out, usable, ticks = tmp_path / "out", tmp_path / "usable", [0]
    options: Any = {"lineage": {"loop": "test"}}

    def count(tick: Tick) -> None:
        ticks.append(tick.done if tick.unit == "positions" else 0)

    with pytest.raises(ExploreError, match="nothing is finished"):
        reanalyse(sources, CONFIG, out, finished_only=True, **options)
    with pytest.raises(Stopped, match="12 of 40 positions"):
        reanalyse(sources, CONFIG, out, progress=count, stop=lambda: ticks[-1] >= 12, **options)
    shutil.copytree(out, usable)
    manifest = reanalyse(sources, CONFIG, usable, finished_only=True, **options)
    assert (manifest["positions"]["train"], manifest["selfplay"]["unfinished"]) == (12, 28)
    assert compare_files(usable) == []
    visits = {
        (row["game"], row["ply"]): row["visits"] for row in datasets.table(generation).to_pylist()
    }
    for row in datasets.table(usable).to_pylist():
        assert visits[row["game"], row["ply"]] == row["visits"]
    ticks.clear()
    reanalyse(sources, CONFIG, out, progress=lambda tick: ticks.append(tick.done), **options)
    assert ticks == list(range(16, 41, 4))
    assert content(out) == content(generation)


def test_a_count_above_the_number_of_positions_is_an_error_unless_allowed(
    sources: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, message = searched(count=1_000_000), r"has only ([\d,]+) distinct positions"
    with pytest.raises(ExploreError, match=message) as refused:
        reanalyse(sources, config, tmp_path / "out")
    (number,) = re.findall(message, str(refused.value))
    rows = datasets.table(sources[1]).to_pylist()
    late = [row for row in rows if row["split"] == "train" and row["ply"] >= draw.MIN_PLY]
    distinct = len({row["planes"] for row in late})  # positions also differ by castling rights
    assert int(number.replace(",", "")) == pytest.approx(distinct, rel=0.02)
    (tmp_path / "drawn").mkdir()
    with caplog.at_level("WARNING"):
        drawn = draw.draw_positions(
            [sources[1]], config, tmp_path / "drawn", silent, never, exact_count=False
        )
    assert f"{drawn['positions']:,}" == number
    assert f"{number} distinct positions from half-move 6 on; all of them" in caplog.text


def test_an_exported_network_searches_and_is_recorded(
    sources: tuple[Path, Path], tmp_path: Path
) -> None:
    embedded = REPOSITORY / "datasets" / "embedded"
    config = searched(count=6, width=3, device="onnx")
    reanalyse((embedded, sources[1]), config, tmp_path / "out")
    manifest = datasets.manifest(tmp_path / "out")
    assert manifest["selfplay"]["timing"]["devices"] == ["cpu onnxruntime int8"]
    assert manifest["lineage"]["checkpoint"]["onnx_sha256"] == hash_file(embedded / "model.onnx")
    assert compare_files(tmp_path / "out") == []
    with pytest.raises(
        OnnxError, match=r"checkpoint: there is no model\.onnx; create it with `fianchetto export"
    ):
        reanalyse(sources, config, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_wrong_input_is_refused_in_one_line(sources: tuple[Path, Path], tmp_path: Path) -> None:
    checkpoint, positions = sources
    make(tmp_path / "silent", preset("chess-policy-only"))
    only_test, config = tmp_path / "only_test", IngestConfig(test_share=0.999999, val_share=0.0)
    ingest([str(positions.parent / "games.pgn")], only_test, config, workers=1)
    out = tmp_path / "new"
    for network, dataset, folder, message in (
        (tmp_path / "silent", positions, out, "has no value head"),
        (checkpoint, checkpoint, out, "has no manifest.json"),
        (checkpoint, only_test, out, "no position to search"),
        (checkpoint, positions, positions / "inside", "or inside it"),
    ):
        with pytest.raises(UserError, match=message) as error:
            reanalyse((network, dataset), searched(count=4), folder)
        assert "\n" not in str(error.value)


def reachable_fens(board: chess.Board, moves: int) -> Iterator[str]:
    """Yield the FEN after every sequence of this many legal moves."""
    if not moves:
        yield board.fen(en_passant="fen")
        return
    for move in board.legal_moves:
        board.push(move)
        yield from reachable_fens(board, moves - 1)
        board.pop()


def test_near_positions_are_one_to_four_legal_moves_from_a_game(sources: tuple[Path, Path]) -> None:
    batches = Batches([sources[1]], "train", batch_size=50, columns=draw.COPIED_COLUMNS)
    (batch,) = itertools.islice(batches, 1)
    before = [to_board(position) for position in rows_to_positions(batch)]
    rows = {name: batch[name].copy() for name in draw.COPIED_COLUMNS}
    draw.play_random_moves(rows, 3, silent, never)
    after = [to_board(position) for position in rows_to_positions(rows)]
    moves = rows["ply"].astype(int) - batch["ply"]
    assert set(moves.tolist()) >= set(range(1, draw.MAX_RANDOM_MOVES + 1))
    assert moves.max() == draw.MAX_RANDOM_MOVES
    short = np.flatnonzero(moves <= 2).tolist()
    assert len(short) > 15
    for row in short:
        assert after[row].fen(en_passant="fen") in set(reachable_fens(before[row], int(moves[row])))
    assert all(board.is_valid() and not board.is_game_over() for board in after)
    assert (rows["label"] == NO_LABEL).all()
    assert not rows["plies"].any()


def test_a_dataset_of_near_positions_has_no_moves_and_results(tmp_path: Path) -> None:
    sources, count = prepare(tmp_path, games=3), 240
    assert datasets.manifest(sources[1])["positions"]["train"] < count, (
        "positions are used several times"
    )
    config = searched(explorer="hand-written", source="near", count=count, width=64)
    manifest = reanalyse(sources, config, tmp_path / "out")
    table = datasets.table(tmp_path / "out")
    assert len(table) == manifest["selfplay"]["searched"] > 0.9 * count
    assert len(set(table["planes"].to_pylist())) > 0.8 * count
    assert set(table["label"].to_pylist()) == {NO_LABEL}
    assert set(table["plies"].to_pylist()) == {0}
    assert set(table["eval"].to_pylist()) == {None}
    assert all(set(table[name].to_pylist()) == {None} for name in draw.CONTEXT_COLUMNS)
    assert np.abs(table["best_value"].to_numpy()).max() <= 1
