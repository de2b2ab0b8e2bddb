"""Matches: the referee, engines that misbehave, clocks, and determinism."""

import itertools
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import chess
import psutil
import pytest
from chess.engine import Cp

from engine.evaluation.evaluator import uniform
from engine.evaluation.handwritten import evaluate
from engine.match import Limit, PlayerError, arena
from engine.match.arena import GameRecord, MatchGame, play
from engine.match.openings import Opening
from engine.match.players import Contestant, LocalSide, MoveRequest, PlayResult
from engine.match.uci_player import probe_engine
from engine.search import SearchConfig
from engine.search.human import Correction, human_config
from engine.uci.commands import parse_go
from tests.processes import read_command_line

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
    path = shutil.which("stockfish") or shutil.which("stockfish", path="/usr/games")
    if path is None:
        pytest.skip("stockfish is not installed: apt-get install stockfish")
    return Contestant(name="Stockfish", command=(path,), limit=Limit(nodes=nodes))


def match(
    a: Contestant, b: Contestant, openings: list[Opening], **config: object
) -> list[GameRecord]:
    records: list[GameRecord] = []
    play((a, b), openings, report=records.append, **config)
    return sorted(records, key=lambda record: record.game)


def remaining_engines() -> list[psutil.Process]:
    """Return the engines that do not exit; a killed one is a zombie until its watcher reads it."""
    below = psutil.Process().children(recursive=True)
    ours = [child for child in below if ROGUE.name in read_command_line(child)]
    return list(psutil.wait_procs(ours, timeout=120)[1])


@pytest.fixture
def tenths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each move of an engine take 0.1 s on the referee's clock, in one game at a time."""
    ticks = itertools.count()
    monkeypatch.setattr(
        "engine.match.uci_player.time", SimpleNamespace(perf_counter=lambda: next(ticks) / 10)
    )


def searching(simulations: int, evaluator: object = evaluate) -> Contestant:
    search = SearchConfig(simulations=simulations)
    return Contestant(name=f"searching {simulations}", evaluator=evaluator, search=search)


# --- engines that misbehave


@pytest.mark.parametrize(
    ("how", "ending", "timeout"),
    [("a1a1", "illegal move", 1e6), ("nothing", "illegal move", 1e6), ("hang", "timeout", 0.5)],
)
def test_an_engine_that_misbehaves_loses_at_once(
    how: str, ending: str, timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena, "MOVE_TIMEOUT_SECONDS", timeout)
    records = match(rogue(how), GREEDY, LINES[:1], concurrency=2)
    forfeits = [(record.forfeit, record.ending, record.points) for record in records]
    assert forfeits == [("a", ending, 0.0)] * 2
    assert [record.result for record in records] == ["0-1", "1-0"]
    assert [len(record.moves) for record in records] == [0, 1]
    assert not remaining_engines()


def test_a_crashed_engine_is_restarted_for_the_next_game() -> None:
    records = match(rogue("late-crash"), rogue("fair", Manners="3"), LINES[:1], concurrency=1)
    assert [(record.forfeit, record.ending) for record in records] == [("a", "crash")] * 2
    assert [len(record.moves) for record in records] == [4, 5], "two moves of each process"
    assert not remaining_engines()


def test_an_engine_loses_when_its_clock_runs_out(tenths: None) -> None:
    players = rogue("fair", limit=Limit(base=0.25)), rogue("fair", limit=Limit(base=60.0))
    flagged = match(*players, LINES[:1], margin=0.02, concurrency=1)
    assert [(record.forfeit, record.ending) for record in flagged] == [("a", "timeout")] * 2
    assert [len(record.moves) for record in flagged] == [4, 5], "two moves of 0.1 s fit into 0.25 s"


def test_engines_get_both_clocks_new_games_and_moves_to_the_next_time_control(
    tmp_path: Path, tenths: None
) -> None:
    logging = rogue("log", str(tmp_path), limit=Limit(base=20.0, increment=0.5, moves=2))
    other = rogue("fair", limit=Limit(base=30.0))
    records = match(logging, other, LINES[:1], concurrency=1, max_plies=10)
    received = (tmp_path / "received").read_text().splitlines()
    asked = [line.split() for line in received if line.startswith("go")]
    assert asked[0][:9] == ["go", "wtime", "20000", "btime", "30000", "winc", "500", "binc", "0"]
    assert [words[words.index("movestogo") + 1] for words in asked] == ["2", "1", "2", "1"] * 2
    left = [int(words[2]) for words in asked[:3]]
    assert left == [20000, 20400, 40800], "an increment, and twenty seconds after the second move"
    assert received.count("ucinewgame") == 2
    assert "position startpos moves e2e4 e7e5" in received
    assert [record.ending for record in records] == ["adjudication"] * 2
    clocks = records[0].clocks
    assert clocks is not None
    assert (len(clocks), clocks[:2]) == (8, [20.4, 29.9])


def test_an_engine_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe_engine(rogue("fair", Manners="2")) == "Rogue"
    monkeypatch.setattr("engine.match.uci_player.START_TIMEOUT", 1.0)
    for player, problem in (
        (rogue("mute"), "cannot be started as a UCI engine"),
        (Contestant(name="absent", command=("/nowhere/engine",)), "cannot be started"),
    ):
        with pytest.raises(PlayerError, match=problem):
            probe_engine(player)
    monkeypatch.undo()
    with pytest.raises(PlayerError, match="rejected its options"):
        probe_engine(rogue("fair", Style="wild"))
    assert not remaining_engines()


# --- games between players of this project


class RatedEvaluator:
    """Evaluator with the same logit for all moves, which records the columns of each call."""

    columns: ClassVar = {"elo": 0, "opponent_elo": 0}

    def __init__(self) -> None:
        self.columns_of_calls: list[dict[str, list[int]]] = []

    def __call__(self, planes_BP: Any, columns: Any = None) -> Any:
        given = {name: column.tolist() for name, column in (columns or {}).items()}
        self.columns_of_calls.append(given)
        return uniform(planes_BP)[0], evaluate(planes_BP)[1]


def play_rated_moves(seed: int, games: list[int], weight: float = 0.0) -> list[str]:
    """Return the first moves of a player with a rating in the games with these numbers."""
    evaluator = RatedEvaluator()
    contestant = Contestant(
        name="rated",
        evaluator=evaluator,
        rating=1700,
        correction=Correction([1000], [weight], [1.0], 12),
        search=human_config(12),
        seed=seed,
    )
    side = LocalSide(contestant, len(games))
    side.games = dict(enumerate(games))
    board = chess.Board("4k3/8/8/3q4/4P3/8/8/4K3 w - - 0 1") if weight else chess.Board()
    played = side.play([MoveRequest(slot, board, None) for slot in range(len(games))])
    rows = max(2, len(games))
    assert evaluator.columns_of_calls[0] == {"elo": [1700] * rows, "opponent_elo": [1700] * rows}
    assert not any(evaluator.columns_of_calls[1:]), "only roots are evaluated with ratings"
    return [str(result.move) for result in played]


def test_moves_sampled_for_a_rating_depend_only_on_seed_and_game() -> None:
    moves = play_rated_moves(1, [0, 1, 2, 3])
    assert len(set(moves)) > 2
    assert [play_rated_moves(1, [game])[0] for game in range(4)] == moves
    assert play_rated_moves(2, [0, 1, 2, 3]) != moves
    assert set(play_rated_moves(1, [0, 1, 2, 3], weight=300.0)) == {"e4d5"}, "the search decides"


def test_games_do_not_depend_on_the_concurrency() -> None:
    wide = match(searching(12), searching(6), LINES, max_plies=40)
    assert wide == match(searching(12), searching(6), LINES, concurrency=2, max_plies=40)
    assert len({tuple(record.moves) for record in wide}) == 6
    books = [opening.moves for opening in LINES for _ in range(2)]
    assert [tuple(record.book) for record in wide] == books, "a pair shares an opening"


@pytest.mark.parametrize(
    "limit",
    [
        Limit(base=8.0, increment=0.1),
        Limit(base=8.0, moves=40),
        Limit(base=0.005),
        Limit(movetime=0.3),
        Limit(),
    ],
)
def test_a_player_has_the_same_limits_in_a_match_as_over_uci(limit: Limit) -> None:
    side = LocalSide(Contestant(name="", limit=limit, evaluator=uniform), 1)
    side.games[0] = 0
    clocks = None if limit.base is None else (limit.base, 99.0)
    request = side._convert_request(MoveRequest(0, chess.Board(), clocks, limit.moves))
    words = f"movetime {1000 * limit.movetime:.0f}" if limit.movetime else ""
    if limit.base is not None:
        words = f"wtime {1000 * limit.base:.0f} btime 99000 winc {1000 * limit.increment:.0f}"
        words += "" if limit.moves is None else f" movestogo {limit.moves}"
    assert request.limits == parse_go(words).limits(white=True)


def test_a_sequential_match_waits_for_a_long_game() -> None:
    # the fifty-move rule ends it after three half-moves
    short = Opening("4k3/8/8/8/8/8/8/R3K3 w - - 97 80", ())
    matches: dict[bool, list[GameRecord]] = {False: [], True: []}
    for sequential, records in matches.items():
        play(
            (GREEDY, searching(2)),
            [LINES[0], *[short] * 6],
            concurrency=4,
            max_plies=40,
            sequential=sequential,
            report=records.append,
        )
    order, waiting = ([record.game for record in matches[kind]] for kind in (False, True))
    assert set(order[-2:]) == {0, 1}, "the long pair ends last"
    assert set(waiting[: waiting.index(0)]) <= {1, 2, 3}
    assert set(waiting[: waiting.index(1)]) <= {0, 2, 3, 4}
    for records in matches.values():
        records.sort(key=lambda record: record.game)
    assert matches[True] == matches[False]


def test_stockfish_beats_a_policy_and_announces_mate() -> None:
    records = match(stockfish(200), GREEDY, LINES[:1])
    assert [record.points for record in records] == [1.0] * 2
    assert [record.ending for record in records] == ["checkmate"] * 2
    assert records[0].scores[-1] == "#1"
    assert records[1].scores[-1] == "#-1", "scores are White's view"
    assert probe_engine(stockfish(1)).startswith("Stockfish")


# --- the referee


def play_moves(fen: str, moves: str, *, number: int = 0, max_plies: int = 0) -> MatchGame:
    game = MatchGame(number, Opening(fen), (Limit(), Limit()), max_plies)
    for move in moves.split():
        game.apply_result(PlayResult(chess.Move.from_uci(move), Cp(0), 0.0), 0.0)
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
        ("4k3/8/8/8/8/8/4P3/Q3K3 w - - 0 1", "a1a2 e8d8 a2a3 d8e8", ("1/2-1/2", "adjudication")),
        (chess.STARTING_FEN, "e2e4 e7e5", None),
    ],
)
def test_games_end_by_the_rules(fen: str, moves: str, end: tuple[str, str] | None) -> None:
    max_plies = 4 if end and end[1] == "adjudication" else 0
    assert play_moves(fen, moves, max_plies=max_plies).end == end


@pytest.mark.parametrize("move", [chess.Move(12, 36), chess.Move(0, 0), chess.Move.null()])
def test_an_illegal_move_loses(move: chess.Move) -> None:
    game = play_moves(chess.STARTING_FEN, "", number=1)
    game.apply_result(PlayResult(move, None, 0.0), 0.0)
    assert game.end == ("0-1", "illegal move")
    assert (game.forfeit, game.record().points) == ("b", 1.0)


def test_clocks_lose_the_time_of_each_move() -> None:
    game = MatchGame(
        1, Opening(chess.STARTING_FEN), (Limit(base=5.0), Limit(base=10.0, increment=2.0))
    )
    assert game.request(0).clocks == (10.0, 5.0), "B is White in odd games"
    for move, seconds in (("e2e4", 3.0), ("e7e5", 1.5), ("g1f3", 4.0)):
        game.apply_result(PlayResult(chess.Move.from_uci(move), None, seconds), 0.1)
    assert game.clocks == [9.0, 3.5, 7.0]
    game.apply_result(PlayResult(chess.Move.from_uci("b8c6"), None, 3.55), 0.1)
    assert (game.end, game.clocks[-1]) == (None, 0.0), "the move is within the margin"
    game.apply_result(PlayResult(chess.Move.from_uci("f1b5"), None, 1.0), 0.1)
    game.apply_result(PlayResult(chess.Move.from_uci("a7a6"), None, 0.2), 0.1)
    assert game.end == ("1-0", "timeout")
    assert game.record().forfeit == "a"
