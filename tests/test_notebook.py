"""The notebook of first steps runs, and shows what its text says; the wheel's test runs it where
only a wheel is installed."""

import json
from pathlib import Path

import chess

from tests.notebook import NOTEBOOK, run


def test_the_notebook_leads_from_a_row_to_a_board_to_a_prediction(tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    names, outputs = run(cells, tmp_path)
    assert names["manifest"]["games"]["used"] == 2000
    board, row = chess.Board(names["row"]["fen"]), names["row"]
    assert chess.Move.from_uci(row["uci"]) in board.legal_moves
    assert names["choice"].move in board.legal_moves
    assert (names["pictures"].sum(axis=(2, 3))[:, 10:12] == 1).all(), "each side has one king"
    stored = [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]
    assert [list(map(kind, shown)) for shown in stored] == [
        list(map(kind, shown)) for shown in outputs
    ]
    assert outputs[:3] == stored[:3], "run `python -m tests.notebook`"


def kind(output: dict[str, dict[str, object]]) -> str:
    """Name what an output is, by which its text may differ from machine to machine."""
    return next(iter(output.get("data", {"text": ""})))
