"""The embedded sample: Lichess's layout, legal games, the same every time."""

import io
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import chess
import chess.pgn
import numpy as np
import pytest
import zstandard

from engine.board.position import from_board
from engine.board.rng import draw
from engine.board.rules import FIFTY, MATE, MATERIAL, REPETITION, STALEMATE
from pipeline.samples import dump as sample
from pipeline.samples import play as sample_play

COUNT = 60
DUMP = Path(__file__).parents[3] / "datasets" / "sample" / "fianchetto_sample_2000.pgn.zst"
PLY = r"\d+\.(?:\.\.)? [KQRBNa-hO][^ ]* \{ \[%clk \d:\d\d:\d\d\] \}"
LAYOUT = re.compile(
    r"(?:\[[A-Za-z]+ \"[^\"\n]+\"\]\n){14}\n"  # tags
    rf"(?:{PLY} )*(?:1-0|0-1|1/2-1/2)\n\n"  # movetext on one line
)


@cache
def played() -> tuple[sample.Game, ...]:
    return tuple(sample.played(COUNT))


@cache
def text() -> str:
    return "".join(sample.pgn(game) for game in played())


def test_the_layout_is_lichess() -> None:
    whole = text()
    at = 0
    for _ in range(COUNT):
        match = LAYOUT.match(whole, at)
        assert match, whole[at : at + 500]
        at = match.end()
    assert at == len(whole)
    assert "lichess" not in whole.lower()
    first = whole.split("\n\n")[1]
    assert re.match(r"1\. \S+ \{ \[%clk \S+\] \} 1\.\.\. \S+ \{ \[%clk", first)


def test_python_chess_replays_every_game_and_agrees_on_the_end() -> None:
    stream = io.StringIO(text())
    kinds: set[int] = set()
    for game in played():
        read = chess.pgn.read_game(stream)
        assert read is not None
        assert read.errors == []
        board = read.end().board()
        assert board.ply() == len(game.sans)
        assert read.headers["Result"] == game.result
        kinds.add(game.ending)
        ended = {
            MATE: board.is_checkmate,
            STALEMATE: board.is_stalemate,
            MATERIAL: board.is_insufficient_material,
            REPETITION: board.is_repetition,
            FIFTY: board.is_fifty_moves,
        }
        for ending, by_rule in ended.items():
            assert (game.ending == ending) == bool(by_rule()), (game.number, ending)
        if game.ending in (MATE, sample_play.RESIGNED):
            assert game.result == ("0-1" if board.turn == chess.WHITE else "1-0")
    assert chess.pgn.read_game(stream) is None
    assert {MATE, sample_play.RESIGNED, REPETITION} <= kinds


def test_no_game_goes_on_after_the_rules_ended_it() -> None:
    for game in played()[:20]:
        board = chess.Board()
        for san in game.sans:
            assert not board.is_repetition()
            assert not board.is_fifty_moves()
            assert not board.is_insufficient_material()
            board.push_san(san)


def test_clocks_run_down_and_gain_no_more_than_the_increment() -> None:
    for game in played():
        for side in (0, 1):
            left = [game.base, *game.clocks[side::2]]
            assert left[:2] == [game.base] * min(len(left), 2)
            assert all(clock >= 0 for clock in left)
            assert all(after <= before + game.increment for before, after in pairwise(left))
        if game.ending == sample_play.FLAGGED:
            assert game.termination == "Time forfeit"


def test_two_runs_are_the_same_bytes_and_the_first_games_do_not_depend_on_the_count(tmp_path: Path) -> None:
    first, second = tmp_path / "a.pgn.zst", tmp_path / "b.pgn.zst"
    told = sample.sample(first, 12)
    assert sample.sample(second, 12)["sha256"] == told["sha256"]
    assert first.read_bytes() == second.read_bytes()
    assert told["bytes"] == first.stat().st_size
    assert told["games"] == 12
    plain = tmp_path / "c.pgn"
    sample.sample(plain, 5)
    assert text().startswith(plain.read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pgn.zst", "b.pgn.zst", "c.pgn"]


def test_the_committed_dump_is_what_this_code_makes() -> None:
    if not DUMP.exists():
        pytest.skip(f"{DUMP} is missing")
    assert DUMP.stat().st_size < 1_200_000
    with DUMP.open("rb") as file:
        head = zstandard.ZstdDecompressor().stream_reader(file).read(len(text().encode()))
    assert head.decode() == text()


def test_another_seed_is_other_games() -> None:
    assert next(sample.played(1, seed=1)).sans != played()[0].sans


def test_stronger_players_score_better() -> None:
    weak, strong = np.array([46, 0, 0]), np.array([6, 50, 0])
    points = 0.0
    for number in range(60):
        state, position = np.array([number], dtype=np.uint64), from_board(chess.Board())
        moves = np.zeros((sample_play.MAX_PLIES, 3), dtype=np.int64)
        pair = np.stack([strong, weak] if number % 2 == 0 else [weak, strong])
        plies, ending = sample_play.play(position, state, pair, 900, 10, moves)
        lost = ending in (MATE, sample_play.RESIGNED, sample_play.FLAGGED)
        points += 0.5 if not lost else float(plies % 2 != number % 2)
    assert points > 36


def test_draws_are_even_and_the_table_falls() -> None:
    state = np.array([5], dtype=np.uint64)
    counts = np.bincount([draw(state, 10) for _ in range(10_000)], minlength=10)
    assert counts.min() > 850
    table = sample_play._DECAY.astype(np.float64) / 2**30
    np.testing.assert_allclose(table, np.exp(-np.arange(1024) / 64), atol=1e-6)


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(sample.SampleError, match=r"\.pgn"):
        sample.sample(tmp_path / "sample.txt", 1)
    with pytest.raises(sample.SampleError, match="at least one"):
        sample.sample(tmp_path / "sample.pgn", 0)


def test_it_never_writes_over_the_tracked_dump_or_another_file(tmp_path: Path) -> None:
    before = DUMP.read_bytes()
    theirs = tmp_path / "mine.pgn"
    theirs.write_text("my games")
    for out in (theirs, DUMP):
        with pytest.raises(sample.SampleError, match="exists and has other content: remove it, or choose another"):
            sample.sample(out, 3)
    assert theirs.read_text() == "my games"
    assert DUMP.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["mine.pgn"]
