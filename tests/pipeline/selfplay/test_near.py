"""Positions near people's are reached by legal moves, by python-chess, and belong to no game."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import chess
import numpy as np

from engine.board.position import to_board
from engine.encoding.views import NO_LABEL
from pipeline.dataset.batches import Batches
from pipeline.dataset.files.stored_planes import row_positions
from pipeline.selfplay.draw import CONTEXT, KEPT
from pipeline.selfplay.job import explore
from pipeline.selfplay.near import MOST_MOVES, step_off
from tests.pipeline import datasets
from tests.pipeline.selfplay.generations import prepare, searched

MANY = 400
"""Positions to search, more than the dataset has."""


def after(board: chess.Board, moves: int) -> Iterator[str]:
    """Give the FEN after every sequence of this many legal moves."""
    if not moves:
        yield board.fen(en_passant="fen")
        return
    for move in board.legal_moves:
        board.push(move)
        yield from after(board, moves - 1)
        board.pop()


def test_positions_are_one_to_four_legal_moves_off_a_game(tmp_path: Path) -> None:
    (batch,) = itertools.islice(
        Batches([prepare(tmp_path)[1]], "train", batch_size=200, columns=KEPT), 1
    )
    before = [to_board(position) for position in row_positions(batch)]
    rows = {name: batch[name].copy() for name in KEPT}
    step_off(rows, seed=3)
    reached = [to_board(position) for position in row_positions(rows)]
    moves = rows["ply"].astype(int) - batch["ply"]
    assert set(moves.tolist()) >= set(range(1, MOST_MOVES + 1))
    assert moves.max() == MOST_MOVES
    near = [at for at, played in enumerate(moves.tolist()) if played <= 2]
    assert len(near) > 60
    for at in near:
        assert reached[at].fen(en_passant="fen") in set(after(before[at], int(moves[at])))
    assert all(board.is_valid() and not board.is_game_over() for board in reached)
    assert (rows["label"] == NO_LABEL).all()
    assert not rows["plies"].any()


def test_searches_near_games_are_a_dataset_without_moves_and_results(tmp_path: Path) -> None:
    _, positions = prepare(tmp_path, games=6)
    config = searched(explorer="hand-written", source="near", count=MANY)
    manifest = explore(None, config, tmp_path / "out", datasets=[positions], workers=1)
    table = datasets.table(tmp_path / "out")
    assert len(table) == manifest["selfplay"]["searched"] > 0.9 * MANY
    assert datasets.manifest(positions)["positions"]["train"] < MANY, (
        "several walks begin at a position"
    )
    assert len(set(table["planes"].to_pylist())) > 0.8 * MANY
    assert set(table["label"].to_pylist()) == {NO_LABEL}
    assert set(table["plies"].to_pylist()) == {0}
    assert set(table["eval"].to_pylist()) == {None}
    assert all(set(table[name].to_pylist()) == {None} for name in CONTEXT)
    assert np.abs(table["best_value"].to_numpy()).max() <= 1
