"""Matches: the referee, forfeits of engines that misbehave, determinism, and when a test has
decided."""

import itertools
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import chess
import numpy as np
import psutil
import pytest
from chess.engine import Cp

from engine.evaluation.evaluator import uniform
from engine.evaluation.handwritten import evaluate
from engine.match import arena
from engine.match.arena import pairs_to_decision, play
from engine.match.config import Limit, PlayerError
from engine.match.game import GameRecord, MatchGame
from engine.match.openings import Opening, generate
from engine.match.players import OVERHEAD, Contestant, MoveRequest, OwnSide, PlayResult
from engine.match.sprt import SprtConfig
from engine.match.uci_player import probe
from engine.search import SearchConfig
from tests.engine.uci.uci_talk import Counting, Talk
from tests.processes import command

ROGUE = Path(__file__).parent / "rogue_engine.py"
LINES = [
    Opening(chess.STARTING_FEN, moves)
    for moves in (("e2e4", "e7e5"), ("d2d4", "d7d5"), ("c2c4", "c7c5"))
]
GREEDY = Contestant(name="greedy", evaluator=uniform)


def rogue(how: str, *words: str, limit: Limit | None = None, **options: str) -> Contestant:
    command = (sys.executable, str(ROGUE), how, *words)
    return Contestant(name=how, command=command, limit=limit or Limit(nodes=1), options=options)


def stockfish(nodes: int) -> Contestant:
    path = shutil.which("stockfish", path="/usr/games:/usr/local/bin:/usr/bin") or shutil.which(
        "stockfish"
    )
    if path is None:
        pytest.skip("stockfish is not installed: apt-get install stockfish")
    return Contestant(
        name="Stockfish",
        command=(path,),
        limit=Limit(nodes=nodes),
        options={"Hash": "1", "Threads": "1"},
    )


def match(
    a: Contestant, b: Contestant, openings: list[Opening], **config: object
) -> list[GameRecord]:
    records: list[GameRecord] = []
    play((a, b), openings, report=records.append, **config)
    return sorted(records, key=lambda record: record.game)


def still_there() -> list[psutil.Process]:
    """Give the processes that were started and do not go: one that was killed is a zombie until its
    watcher has looked.

    Not those that wait for other tests, which processes are forked from.
    """
    below = psutil.Process().children(recursive=True)
    ours = [
        child
        for child in below
        if not re.search("pipeline.executors.local|tests.forked", command(child))
    ]
    _, alive = psutil.wait_procs(ours, timeout=120)
    return list(alive)


@pytest.fixture
def tenths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every move of an engine take 0.1 s on the referee's clock; for one game at a time."""
    ticks = itertools.count()
    monkeypatch.setattr(
        "engine.match.uci_player.time", SimpleNamespace(perf_counter=lambda: next(ticks) / 10)
    )


def searching(simulations: int, evaluator: object = evaluate) -> Contestant:
    search = SearchConfig(simulations=simulations)
    return Contestant(name=f"searching {simulations}", evaluator=evaluator, search=search)


# --- engines that misbehave
# ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "ending", "patience"),
    [
        ("a1a1", "illegal move", 1e6),
        ("nothing", "illegal move", 1e6),
        ("crash", "crash", 1e6),
        ("hang", "timeout", 0.5),
    ],
)
def test_an_engine_that_misbehaves_loses_every_game_at_once(
    how: str, ending: str, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena, "PATIENCE", patience)
    records = match(rogue(how), GREEDY, LINES[:2], concurrency=2)
    assert [(record.forfeit, record.ending, record.points) for record in records] == [
        ("a", ending, 0.0)
    ] * 4
    assert [record.result for record in records] == ["0-1", "1-0"] * 2
    assert [len(record.moves) for record in records] == [0, 1] * 2
    assert not still_there(), "every process is ended"


def test_an_engine_that_crashed_is_started_again() -> None:
    records = match(rogue("late-crash"), GREEDY, LINES[:1], concurrency=1)
    assert [(record.forfeit, record.ending) for record in records] == [("a", "crash")] * 2
    assert [len(record.moves) for record in records] == [4, 5], "each process plays two moves"


def test_both_may_be_engines_and_the_other_one_is_not_blamed() -> None:
    records = match(rogue("nothing"), rogue("fair", Manners="3"), LINES[:1])
    assert [record.forfeit for record in records] == ["a", "a"]


def test_an_engine_that_thinks_too_long_loses_on_time() -> None:
    slow = rogue("slow", limit=Limit(movetime=0.05))
    records = match(GREEDY, slow, LINES[:1], margin=0.02)
    assert [(record.forfeit, record.ending, record.points) for record in records] == [
        ("b", "timeout", 1.0)
    ] * 2


def test_an_engine_whose_clock_runs_out_loses_on_time(tenths: None) -> None:
    players = rogue("fair", limit=Limit(base=0.25)), rogue("fair", limit=Limit(base=60.0))
    flagged = match(*players, LINES[:1], margin=0.02, concurrency=1)
    assert [(record.forfeit, record.ending) for record in flagged] == [("a", "timeout")] * 2
    assert [len(record.moves) for record in flagged] == [4, 5], "two moves of 0.1 s fit into 0.25 s"


def test_engines_are_told_clocks_and_games(tmp_path: Path, tenths: None) -> None:
    told = rogue("gossip", str(tmp_path), limit=Limit(base=20.0, increment=0.5))
    records = match(
        told, rogue("fair", limit=Limit(base=30.0)), LINES[:1], concurrency=1, max_plies=8
    )
    said = (tmp_path / "said").read_text().splitlines()
    asked = [line.split() for line in said if line.startswith("go")]
    assert len(asked) == 6
    assert asked[0][:9] == ["go", "wtime", "20000", "btime", "30000", "winc", "500", "binc", "500"]
    assert asked[1][2] == "20400", "the increment is added after the move"
    assert said.count("ucinewgame") == 2
    assert "position startpos moves e2e4 e7e5" in said
    assert [record.ending for record in records] == ["adjudication"] * 2
    clocks = records[0].clocks
    assert clocks is not None
    assert len(clocks) == 6
    assert clocks[0] > 20 > 0 < clocks[1] <= 30


def test_engines_are_told_the_moves_to_the_next_time_control(tmp_path: Path, tenths: None) -> None:
    told = rogue("gossip", str(tmp_path), limit=Limit(base=20.0, moves=2))
    records = match(
        told, rogue("fair", limit=Limit(base=30.0)), LINES[:1], concurrency=1, max_plies=10
    )
    asked = [
        line.split()
        for line in (tmp_path / "said").read_text().splitlines()
        if line.startswith("go")
    ]
    assert [words[words.index("movestogo") + 1] for words in asked] == ["2", "1", "2", "1"] * 2
    left = [int(words[words.index("wtime") + 1]) for words in asked[:3]]
    assert left == [20000, 19900, 39800], "twenty seconds more after the second move"
    assert [record.forfeit for record in records] == [None, None]


@pytest.mark.parametrize("how", ["mute", "crash-at-once"])
def test_an_engine_that_never_worked_is_the_users_mistake(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.match.uci_player.STARTING_SECONDS", 1.0)
    player = rogue("mute") if how == "mute" else Contestant(name="false", command=("false",))
    with pytest.raises(PlayerError, match="cannot be started as a UCI engine"):
        probe(player)
    with pytest.raises(PlayerError, match="cannot be started"):
        probe(Contestant(name="absent", command=("/nowhere/engine",)))
    assert not still_there()


def test_an_option_that_an_engine_does_not_have_is_the_users_mistake() -> None:
    assert probe(rogue("fair", Manners="2")) == "Rogue"
    with pytest.raises(PlayerError, match="refuses its options"):
        probe(rogue("fair", Style="wild"))
    assert not still_there()


# --- games between ours
# -------------------------------------------------------------------------------------------


def test_pairs_share_an_opening_with_colours_changed() -> None:
    records = match(searching(4), GREEDY, LINES, max_plies=30)
    assert [record.game for record in records] == list(range(6))
    assert [tuple(record.book) for record in records] == [
        line.moves for line in LINES for _ in range(2)
    ]
    for record in records:
        board = chess.Board(record.fen)
        for move in record.book + record.moves:
            board.push(board.parse_uci(move))
        assert len(record.scores) == len(record.moves)
        # The greedy player knows nothing, so it always says 0.00: it is Black in even games.
        of_greedy = record.scores[1 - record.game % 2 :: 2]
        assert set(of_greedy) == {"0.00"}


def test_games_do_not_depend_on_how_many_are_played_at_once() -> None:
    openings = generate(4, evaluate, seed=9)
    wide = match(searching(12), searching(6), openings, max_plies=60)
    assert wide == match(searching(12), searching(6), openings, max_plies=60)
    assert wide == match(searching(12), searching(6), openings, concurrency=3, max_plies=60)
    assert len({tuple(record.moves) for record in wide}) == 8


def test_no_position_is_judged_alone_unless_time_is_measured() -> None:
    rows: list[int] = []

    def watched(planes_BP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows.append(len(planes_BP))
        return evaluate(planes_BP)

    alone = match(searching(3, watched), GREEDY, LINES[:1], concurrency=1, max_plies=6)
    assert set(rows) == {2}
    assert alone == match(searching(3), GREEDY, LINES[:1], max_plies=6)
    rows.clear()
    timed = Contestant(
        name="timed", evaluator=watched, search=SearchConfig(nodes=500), limit=Limit(movetime=0.02)
    )
    records = match(timed, GREEDY, LINES[:1], concurrency=1, max_plies=6, margin=60.0)
    assert set(rows) == {1}
    assert [record.ending for record in records] == ["adjudication"] * 2


@pytest.mark.parametrize(
    "limit",
    [
        Limit(base=8.0),
        Limit(base=8.0, increment=0.1),
        Limit(base=8.0, moves=40),
        Limit(base=0.4, moves=1),
        Limit(movetime=0.3),
        Limit(base=0.005),  # time for one evaluation
        Limit(base=0.001),  # time for none
    ],
)
def test_ours_use_their_time_as_the_uci_engine_does(limit: Limit) -> None:
    """On a clock that only evaluations move, both search as many positions, in batches of one size,
    and play the same."""
    matched, spoken = Counting(0.002, evaluate), Counting(0.002, evaluate)
    config = SearchConfig(nodes=20_000, leaves=8)
    contestant = Contestant(name="", limit=limit, evaluator=matched, search=config)
    side = OwnSide(contestant, 1, clock=matched.clock)
    board = chess.Board()
    side.new_game(0, board, 0)
    clocks = None if limit.base is None else (limit.base, limit.base)
    matched.batches.clear()
    (result,) = side.play([MoveRequest(0, board, clocks, limit.moves)])
    words = f"movetime {1000 * limit.movetime:.0f}" if limit.movetime else ""
    if limit.base is not None:
        words = (
            f"wtime {1000 * limit.base:.0f} btime {1000 * limit.base:.0f} winc "
            f"{1000 * limit.increment:.0f}"
        )
        words += "" if limit.moves is None else f" movestogo {limit.moves}"
    with Talk(spoken) as talk:
        talk.say(f"setoption name Move Overhead value {1000 * OVERHEAD:.0f}")
        spoken.batches.clear()
        best = talk.best("position startpos", f"go {words}")
    assert str(result.move) == best
    assert matched.batches == spoken.batches
    assert len(matched.batches) > 20 or (limit.base or 1.0) < 0.01


def test_games_that_are_done_are_not_played_again_and_stopping_gives_up_the_rest() -> None:
    records: list[GameRecord] = []
    play((GREEDY, searching(2)), LINES, done=[0, 1, 2, 5], report=records.append)
    assert sorted(record.game for record in records) == [3, 4]
    few: list[GameRecord] = []
    play(
        (GREEDY, searching(2)), LINES, concurrency=1, report=few.append, stop=lambda: len(few) == 2
    )
    assert [record.game for record in few] == [0, 1]


def test_a_sequential_match_begins_no_game_far_ahead_of_a_long_one() -> None:
    # the fifty-move rule ends it after three half-moves
    short = Opening("4k3/8/8/8/8/8/8/R3K3 w - - 97 80", ())
    found: dict[bool, list[GameRecord]] = {False: [], True: []}
    for sequential, records in found.items():
        play(
            (GREEDY, searching(2)),
            [LINES[0], *[short] * 6],
            concurrency=4,
            max_plies=40,
            sequential=sequential,
            report=records.append,
        )
    orders = {
        sequential: [record.game for record in records] for sequential, records in found.items()
    }
    assert set(orders[False][-2:]) == {0, 1}, "the long pair ends last"
    assert set(orders[True][: orders[True].index(0)]) <= {1, 2, 3}
    assert set(orders[True][: orders[True].index(1)]) <= {0, 2, 3, 4}
    assert sorted(found[True], key=lambda record: record.game) == sorted(
        found[False], key=lambda record: record.game
    )


def test_stockfish_beats_the_greedy_and_says_mate() -> None:
    records = match(stockfish(200), GREEDY, LINES[:2])
    assert [record.points for record in records] == [1.0] * 4
    assert [record.ending for record in records] == ["checkmate"] * 4
    assert records[0].scores[-1] == "#1"
    assert records[1].scores[-1] == "#-1", "scores are White's view"
    assert probe(stockfish(1)).startswith("Stockfish")


# --- the referee
# --------------------------------------------------------------------------------------------------


def played(fen: str, moves: str, *, number: int = 0, max_plies: int = 0) -> MatchGame:
    game = MatchGame(number, Opening(fen), (Limit(), Limit()), max_plies)
    for move in moves.split():
        game.take(PlayResult(chess.Move.from_uci(move), Cp(0), 0.0), 0.0)
    return game


SHUFFLE = "g1f3 g8f6 f3g1 f6g8 g1f3 g8f6 f3g1 f6g8"


@pytest.mark.parametrize(
    ("fen", "moves", "end"),
    [
        (chess.STARTING_FEN, "f2f3 e7e5 g2g4 d8h4", ("0-1", "checkmate")),
        ("7k/8/6K1/5Q2/8/8/8/8 w - - 0 1", "f5f7", ("1/2-1/2", "stalemate")),
        ("7k/8/6K1/4n3/8/8/8/8 w - - 0 1", "g6f5 h8g8 f5e5", ("1/2-1/2", "material")),
        (chess.STARTING_FEN, SHUFFLE, ("1/2-1/2", "repetition")),
        ("7k/8/6K1/8/8/8/8/R7 w - - 98 80", "g6f5 h8g7", ("1/2-1/2", "fifty moves")),
        ("7k/8/6K1/8/8/8/8/R7 w - - 99 80", "a1a8", ("1-0", "checkmate")),
        (chess.STARTING_FEN, "e2e4 e7e5", None),
    ],
)
def test_games_end_as_the_rules_say(fen: str, moves: str, end: tuple[str, str] | None) -> None:
    assert played(fen, moves).end == end


def test_points_are_as_white_in_even_games_and_as_black_in_odd_ones() -> None:
    for number, points in ((0, 0.0), (1, 1.0)):
        assert (
            played(chess.STARTING_FEN, "f2f3 e7e5 g2g4 d8h4", number=number).record().points
            == points
        )
    assert played(chess.STARTING_FEN, SHUFFLE, number=1).record().points == 0.5


@pytest.mark.parametrize("move", ["e2e5", "a1a1", "e7e5", "0000"])
def test_the_referee_plays_no_illegal_move(move: str) -> None:
    game = played(chess.STARTING_FEN, "", number=1)
    game.take(
        PlayResult(chess.Move.from_uci(move) if move != "a1a1" else chess.Move(0, 0), None, 0.0),
        0.0,
    )
    assert game.end == ("0-1", "illegal move")
    assert (game.forfeit, game.record().points) == ("b", 1.0)


def test_clocks_run_down_by_what_a_move_took() -> None:
    game = MatchGame(
        1, Opening(chess.STARTING_FEN), (Limit(base=5.0), Limit(base=10.0, increment=2.0))
    )
    assert game.request(0).clocks == (10.0, 5.0), "B is White in odd games"
    for move, seconds in (("e2e4", 3.0), ("e7e5", 1.5), ("g1f3", 4.0)):
        game.take(PlayResult(chess.Move.from_uci(move), None, seconds), 0.1)
    assert game.clocks == [9.0, 3.5, 7.0]
    game.take(PlayResult(chess.Move.from_uci("b8c6"), None, 3.55), 0.1)
    assert (game.end, game.clocks[-1]) == (None, 0.0), "within the margin"
    game.take(PlayResult(chess.Move.from_uci("f1b5"), None, 1.0), 0.1)
    game.take(PlayResult(chess.Move.from_uci("a7a6"), None, 0.2), 0.1)
    assert game.end == ("1-0", "timeout")
    assert game.record().forfeit == "a"


def test_a_clock_gains_its_time_again_after_its_moves() -> None:
    limits = (Limit(base=10.0, moves=2), Limit(base=10.0, increment=0.5, moves=3))
    assert [
        limit.clock for limit in (*limits, Limit(base=10.0, increment=0.1), Limit(movetime=1.0))
    ] == [
        "2/10",
        "3/10+0.5",
        "10+0.1",
        None,
    ]
    game = MatchGame(0, Opening(chess.STARTING_FEN, ("e2e4", "e7e5")), limits)
    to_go = []
    for move in ("g1f3", "b8c6", "f1c4", "f8c5", "c2c3", "g8f6"):
        to_go.append(game.request(0).moves_to_go)
        game.take(PlayResult(chess.Move.from_uci(move), None, 2.0), 0.0)
    assert to_go == [2, 3, 1, 2, 2, 1], "the book's moves do not count"
    assert game.clocks == [8.0, 8.5, 16.0, 7.0, 14.0, 15.5]


def test_a_game_that_is_too_long_is_a_draw() -> None:
    moves = "a1a2 e8d8 a2a3 d8e8"
    assert played("4k3/8/8/8/8/8/4P3/Q3K3 w - - 0 1", moves).end is None
    assert played("4k3/8/8/8/8/8/4P3/Q3K3 w - - 0 1", moves, max_plies=4).end == (
        "1/2-1/2",
        "adjudication",
    )


# --- when a test has decided
# --------------------------------------------------------------------------------------


def test_a_test_goes_by_the_order_of_pairs_and_not_of_their_ends() -> None:
    config = SprtConfig(elo0=0, elo1=200)
    won: list[float | None] = [1.0] * 60
    pairs = pairs_to_decision(won, config)
    assert pairs is not None
    assert 2 < pairs < 20
    assert pairs_to_decision(won[: 2 * pairs], config) == pairs
    assert pairs_to_decision(won[: 2 * pairs - 1], config) is None
    waiting = [None, *won[1:]]
    assert pairs_to_decision(waiting, config) is None, "the first pair is not over, so nothing is"
    assert pairs_to_decision([0.5] * 4, config) is None
    assert pairs_to_decision([0.0] * 60, config) is not None
