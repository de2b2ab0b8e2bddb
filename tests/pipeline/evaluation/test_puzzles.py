"""Puzzles of Lichess are solved where every move is the first choice, and any mate in one is right."""

from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest

from engine.encoding.planes import LABELS, label_of
from pipeline.errors import ConfigError
from pipeline.evaluation.puzzles import read_puzzles, solve
from pipeline.validation.verify import planes_of

# From database.lichess.org (CC0); the last one is made here: two rooks mate, and one of the mates is the solution.
CSV = """PuzzleId,FEN,Moves,Rating,RatingDeviation,Popularity,NbPlays,Themes,GameUrl
00008,r6k/pp2r2p/4Rp1Q/3p4/8/1N1P2R1/PqP2bPP/7K b - - 0 24,f2g3 e6e7 b2b1 b3c1 b1c1 h6c1,1940,75,94,6608,crushing middlegame,x
0000D,5rk1/1p3ppp/pq3b2/8/8/1P1Q1N2/P4PPP/3R2K1 w - - 2 27,d3d6 f8d8 d6d8 f6d8,1447,73,96,28501,advantage endgame,x
mates,6k1/p4ppp/8/8/8/8/5PPP/1RR3K1 b - - 0 1,a7a6 b1b8,900,75,90,1,mateIn1,x
"""


class Knows:
    """A network that plays what it is told, position by position."""

    def __init__(self, moves: dict[str, str]) -> None:
        self.labels = {
            planes_of(board := chess.Board(fen)).tobytes(): label_of(chess.Move.from_uci(uci), board.turn)
            for fen, uci in moves.items()
        }

    def __call__(self, planes_BP: Any, columns: Any) -> tuple[Any, Any]:
        assert len(columns["last_move"]) == len(planes_BP)
        logits_BA = np.zeros((len(planes_BP), LABELS), dtype=np.float32)
        for at, planes_P in enumerate(planes_BP):
            if (label := self.labels.get(planes_P.tobytes())) is not None:
                logits_BA[at, label] = 5.0
        return logits_BA, np.full((len(planes_BP), 3), 1 / 3, dtype=np.float32)


def answers(path: Path) -> dict[str, str]:
    """Return the solver's moves of all puzzles by position."""
    found = {}
    for puzzle in read_puzzles(path):
        board = chess.Board(puzzle["fen"])
        for at, uci in enumerate(puzzle["moves"]):
            if at % 2:
                found[board.fen()] = uci
            board.push_uci(uci)
    return found


def test_puzzles_are_solved_by_their_moves_and_by_any_mate(tmp_path: Path) -> None:
    path = tmp_path / "puzzles.csv"
    path.write_text(CSV)
    known = answers(path)
    assert len(known) == 6
    found = solve(read_puzzles(path), Knows(known))  # type: ignore[arg-type]
    assert (found["solved"], found["puzzles"]) == (1.0, 3)
    assert [(row["band"], row["puzzles"]) for row in found["by_rating"]] == [
        ("below 1000", 1),
        ("1400-1799", 1),
        ("1800-2199", 1),
    ]
    assert {row["band"] for row in found["by_theme"]} == {"crushing", "middlegame", "advantage", "endgame", "mateIn1"}
    mated = next(fen for fen, uci in known.items() if uci == "b1b8")
    assert solve(read_puzzles(path), Knows(known | {mated: "c1c8"}))["solved"] == 1.0  # type: ignore[arg-type]
    first = next(iter(known))
    another = next(move.uci() for move in chess.Board(first).legal_moves if move.uci() != known[first])
    wrong = solve(read_puzzles(path), Knows(known | {first: another}))  # type: ignore[arg-type]
    assert wrong["solved"] == pytest.approx(2 / 3), "one wrong move loses the puzzle"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read"),
        ("x\n", "no column FEN"),
        ("FEN,Moves\n", "no column Rating"),
        ("FEN,Moves,Rating,Themes\n", "has no puzzles"),
        ("FEN,Moves,Rating,Themes\nnonsense,e2e4 e7e5,1500,x\n", "puzzle 1 is not a Lichess puzzle"),
        (f"FEN,Moves,Rating,Themes\n{chess.STARTING_FEN},e2e4 e2e4,1500,x\n", "puzzle 1 is not a Lichess puzzle"),
        (f"FEN,Moves,Rating,Themes\n{chess.STARTING_FEN},e2e4,1500,x\n", "two moves or more"),
        (f"FEN,Moves,Rating,Themes\n{chess.STARTING_FEN},e2e4 e7e5\n", "puzzle 1 is not a Lichess puzzle"),
    ],
)
def test_another_file_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "puzzles.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_puzzles(path)
