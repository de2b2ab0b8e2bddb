"""Games on a clock as a match runner plays them: python-chess asks the engine as a process and runs
the clock."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import chess
import chess.engine
import chess.pgn
import pytest
import zstandard

from tests.conftest import REPOSITORY
from tests.pipeline.cli.test_play import opened

pytestmark = [pytest.mark.slow, pytest.mark.serial]


@dataclass(frozen=True, kw_only=True)
class Control:
    """A time control."""

    base: float
    increment: float = 0.0
    moves: int | None = None

    def limit(self, clocks: dict[chess.Color, float], number: int) -> chess.engine.Limit:
        """Say what a runner says at move `number` (from 1)."""
        return chess.engine.Limit(
            white_clock=clocks[chess.WHITE],
            black_clock=clocks[chess.BLACK],
            white_inc=self.increment,
            black_inc=self.increment,
            remaining_moves=None if self.moves is None else self.moves - (number - 1) % self.moves,
        )

    def added(self, number: int) -> float:
        """Give what the clock gains with move `number`."""
        return self.increment + (
            self.base if self.moves is not None and number % self.moves == 0 else 0.0
        )


@dataclass(frozen=True)
class Asked:
    """A move that the engine was asked for."""

    board: chess.Board
    seconds: float
    nodes: int
    flagged: bool
    free: bool
    """Whether there was anything to search: more than one move, and no mate that is proven
    already."""


def at_the_clock(
    engine: chess.engine.SimpleEngine,
    control: Control,
    moves: Sequence[chess.Move] | None,
    most: int,
) -> tuple[list[Asked], float]:
    """Have White's moves made on a clock, in the game of `moves` or in one against itself: the
    moves, the share used."""
    board, clocks, given = chess.Board(), dict.fromkeys(chess.COLORS, control.base), control.base
    asked = []
    while board.ply() < most and not board.is_game_over(claim_draw=True):
        mover, number = board.turn, board.fullmove_number
        if moves is not None and not mover:
            board.push(moves[board.ply()])
            continue
        begun = time.perf_counter()
        played = engine.play(
            board, control.limit(clocks, number), game=1, info=chess.engine.INFO_ALL
        )
        seconds = time.perf_counter() - begun
        clocks[mover] -= seconds
        assert played.move in board.legal_moves
        free = board.legal_moves.count() > 1 and not played.info["score"].is_mate()
        asked.append(Asked(board.copy(), seconds, played.info["nodes"], clocks[mover] <= 0.0, free))
        clocks[mover] += control.added(number)
        given += control.added(number) if mover else 0.0
        board.push(played.move if moves is None else moves[board.ply()])
    return asked, 1.0 - clocks[chess.WHITE] / given


def at_move_time(engine: chess.engine.SimpleEngine, asked: Sequence[Asked], game: int) -> list[int]:
    """Give the nodes that the same moves get when each is asked for by the seconds it took."""
    # 20 ms are the engine's overhead
    limits = [chess.engine.Limit(time=move.seconds + 0.02) for move in asked]
    return [
        engine.play(move.board, limit, game=game, info=chess.engine.INFO_ALL).info["nodes"]
        for move, limit in zip(asked, limits, strict=True)
    ]


@pytest.fixture(scope="module")
def engine() -> Iterator[chess.engine.SimpleEngine]:
    """Start the engine that the tests share."""
    with opened("--evaluator", "hand-written") as engine:
        engine.ping()
        yield engine


CONTROLS = [
    Control(base=10.0, increment=0.1),
    Control(base=60.0, increment=0.6),
    Control(base=60.0, moves=40),
]


def long_game() -> list[chess.Move]:
    """Give a real game of the sample that is sixty moves long, or longer."""
    packed = REPOSITORY / "datasets" / "sample" / "fianchetto_sample_2000.pgn.zst"
    with zstandard.open(packed, "rt", encoding="utf-8") as text:
        while game := chess.pgn.read_game(text):
            if game.end().ply() >= 120:
                return list(game.mainline_moves())
    raise AssertionError("the sample holds long games")


@pytest.mark.parametrize("control", CONTROLS)
def test_sixty_moves_use_between_a_third_and_all_of_the_clock(
    engine: chess.engine.SimpleEngine, control: Control
) -> None:
    asked, used = at_the_clock(engine, control, long_game(), 120)
    assert len(asked) == 60
    assert not any(move.flagged for move in asked)
    assert 1 / 3 <= used < 1
    assert sum(move.nodes for move in asked) >= sum(at_move_time(engine, asked, 2)) / 2


@pytest.mark.parametrize("control", CONTROLS)
def test_whole_games_against_itself_are_searched_and_end_without_a_flag(control: Control) -> None:
    with opened() as engine:  # the network that it plays with by default
        engine.ping()
        asked, _ = at_the_clock(engine, control, None, 300)
        assert not any(move.flagged for move in asked)
        free = [move.nodes for move in asked if move.free]
        assert sum(nodes >= 20 for nodes in free) >= 0.9 * len(free)
        assert sum(move.nodes for move in asked) >= sum(at_move_time(engine, asked, 2)) / 2
