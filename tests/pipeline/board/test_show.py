"""Positions as text and as pictures."""

from pathlib import Path

import chess
import pytest

from engine.board.position import FenError
from engine.encoding.views import UnknownViewError
from pipeline.board import show
from tests.engine.board.test_position_many_moves import MANY

KIWIPETE = "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1"


def test_the_start_reads_as_drawn() -> None:
    text = show.format_position(chess.STARTING_FEN)
    lines = text.splitlines()
    assert lines[0] == chess.STARTING_FEN
    assert lines[2] == "r n b q k b n r"
    at = next(i for i, line in enumerate(lines) if line.startswith("0 own pawns"))
    drawn = [line[:15] for line in lines[at + 1 : at + 9]]
    assert drawn == [". . . . . . . ."] * 6 + ["x x x x x x x x"] + [". . . . . . . ."]
    assert "20 legal labels" in text
    assert "13 N1" in text
    assert "14 NE1" not in text  # no legal move north-east by one at the start
    # 12 pieces, N1, N2 and 2 knight steps
    assert "White to move; view marro77; 16 of 77 planes are not empty" in text


@pytest.mark.parametrize("shown", ["marro77", "chessmarro77"])
@pytest.mark.parametrize(
    "fen", [KIWIPETE, KIWIPETE.replace(" w ", " b "), "8/P6k/8/8/8/8/p6K/8 b - - 0 1"]
)
def test_moves_are_the_legal_ones(fen: str, shown: str) -> None:
    board = chess.Board(fen)
    wanted = sorted(m.uci() for m in board.legal_moves if m.promotion in (None, chess.QUEEN))
    listed = show.list_moves(fen, shown)
    assert sorted(uci for _, uci in listed) == wanted
    assert len({label for label, _ in listed}) == len(listed)


def test_a_picture_is_written_whole(tmp_path: Path) -> None:
    out = show.draw_picture(KIWIPETE, "marro77", tmp_path / "deep" / "planes.png")
    assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert out.stat().st_size > 20_000
    assert [path.name for path in out.parent.iterdir()] == ["planes.png"]


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(FenError, match="not a FEN"):
        show.format_position("rubbish")
    with pytest.raises(FenError, match="263 legal moves"):
        show.format_position(MANY)
    with pytest.raises(UnknownViewError, match="marro77"):
        show.format_position(chess.STARTING_FEN, "maro77")
    with pytest.raises(show.ShowError, match=r"planes\.txt2"):
        show.draw_picture(chess.STARTING_FEN, "marro77", tmp_path / "planes.txt2")
    assert list(tmp_path.iterdir()) == []
