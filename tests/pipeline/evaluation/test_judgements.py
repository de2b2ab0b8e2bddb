"""An engine's judgements: drawn positions, Lichess's scores, kept through stops, and refusals."""

import bz2
import gzip
from collections.abc import Callable
from pathlib import Path
from threading import current_thread

import chess
import chess.engine
import pytest
import zstandard

from engine.match.openings import read_book
from pipeline.dumps.reader import open_text
from pipeline.evaluation.judgements import JudgeError, draw_positions, expected_score, judge_positions
from tests.pipeline.judging import GAMES, engine


@pytest.fixture
def games(tmp_path: Path) -> Path:
    """Give three short games."""
    path = tmp_path / "games.pgn"
    path.write_text(GAMES, encoding="utf-8")
    return path


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".zst": zstandard.ZstdCompressor().compress,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
}


@pytest.mark.parametrize("ending", PACKERS)
def test_compressed_games_are_read_as_their_text(ending: str, games: Path, tmp_path: Path) -> None:
    """The positions to judge, and the openings of a book in PGN and in EPD."""
    epd = tmp_path / "book.epd"
    epd.write_text("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - hmvc 0;\n", encoding="utf-8")
    packed = {path: path.with_name(path.name + ending) for path in (games, epd)}
    for path, there in packed.items():
        there.write_bytes(PACKERS[ending](path.read_bytes()))
    assert draw_positions(packed[games], 6, seed=1) == draw_positions(games, 6, seed=1)
    for path, there in packed.items():
        assert read_book(there, open_text=open_text) == read_book(path)
    damaged = tmp_path / f"damaged.pgn{ending}"
    damaged.write_bytes(packed[games].read_bytes()[:-30])
    with pytest.raises(JudgeError, match="cannot be read"):
        draw_positions(damaged, 1000, seed=1)


@pytest.mark.parametrize(
    ("score", "wanted"),
    [
        (chess.engine.Cp(0), 0.5),
        (chess.engine.Cp(100), 0.591),  # Lichess: 59.1 % for a pawn
        (chess.engine.Mate(3), 1.0),
        (chess.engine.Mate(-1), 0.0),
        (chess.engine.MateGiven, 1.0),
        (chess.engine.Mate(0), 0.0),
    ],
)
def test_scores_follow_lichess(score: chess.engine.Score, wanted: float) -> None:
    """Centipawns by its curve, mates as won and lost."""
    assert expected_score(score) == pytest.approx(wanted, abs=5e-4)


def test_a_stopped_judging_goes_on(games: Path, tmp_path: Path) -> None:
    """Stopped in the middle, its last line torn, and run again: the judgements of a run that was never stopped."""
    command = engine(tmp_path)
    whole = judge_positions(games, tmp_path / "whole", positions=6, command=command, depth=1)
    assert len(whole) == 6
    assert all(set(one.scores) == {move.uci() for move in chess.Board(one.fen).legal_moves} for one in whole)
    out, calls = tmp_path / "stopped", iter([False] * 4)

    def stop() -> bool:
        """Stop the thread that judges, which asks once more when it has started its engine, before the fourth position."""
        return current_thread().name.startswith("judge") and next(calls, True)

    part = judge_positions(games, out, positions=6, command=command, depth=1, stop=stop)
    assert len(part) == 3
    with (out / "judged.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"fen": "8/8')
    before = (out / "judged.jsonl").read_text(encoding="utf-8")
    assert judge_positions(games, out, positions=6, command=command, depth=1) == whole
    told = (out / "judged.jsonl").read_text(encoding="utf-8")
    assert told.startswith(before), "a kill while it was written anew would lose what had been judged"
    assert told.count('"scores"') == 6, "nothing is judged twice"


def test_refusals(games: Path, tmp_path: Path) -> None:
    """Another judgement in the folder, no games, an engine that does not judge all moves or is none."""
    command = engine(tmp_path)
    judge_positions(games, tmp_path / "a", positions=2, command=command, depth=1)
    with pytest.raises(JudgeError, match="begun otherwise \\(depth was 1, not 2"):
        judge_positions(games, tmp_path / "a", positions=2, command=command, depth=2)
    (tmp_path / "empty.pgn").write_text("no game\n", encoding="utf-8")
    with pytest.raises(JudgeError, match="has no game"):
        judge_positions(tmp_path / "empty.pgn", tmp_path / "b", positions=2, command=command, depth=1)
    with pytest.raises(JudgeError, match="cannot be read"):
        judge_positions(tmp_path / "none.pgn", tmp_path / "b", positions=2, command=command, depth=1)
    with pytest.raises(JudgeError, match="judged 3 of"):
        judge_positions(games, tmp_path / "c", positions=2, command=engine(tmp_path, "3"), depth=1)
    with pytest.raises(JudgeError, match="failed on"):  # it crashes at its first search
        judge_positions(games, tmp_path / "d", positions=2, command=engine(tmp_path, "0"), depth=1)
    (tmp_path / "a" / "judge.json").write_text("[]", encoding="utf-8")
    with pytest.raises(JudgeError, match="cannot be read"):
        judge_positions(games, tmp_path / "a", positions=2, command=command, depth=1)
