"""The UCI engine answers: every `go` once, with a legal move, at the right moment, whatever else is
said to it."""

import threading
from collections.abc import Iterator
from typing import Any

import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.evaluation.handwritten import evaluate
from engine.search import Search
from tests.engine.uci.uci_talk import Counting, Talk, last_info

MATE_IN_ONE = "6k1/5ppp/8/8/8/8/8/4R1K1 w - - 0 1"
MATE_IN_TWO = "3r2k1/5ppp/8/8/8/8/4R3/4R1K1 w - - 0 1"
LOST_IN_TWO = "3rR1k1/5ppp/8/8/8/8/8/4R1K1 b - - 0 1"
MATED = "R5k1/5ppp/8/8/8/8/8/6K1 b - - 0 1"
STALEMATED = "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"
START = set(chess.Board().legal_moves)


@pytest.fixture
def talk() -> Iterator[Talk]:
    with Talk() as talk:
        yield talk


def test_uci_names_the_engine_and_its_options(talk: Talk) -> None:
    talk.say("uci")
    lines = talk.until("uciok")
    assert lines[0].startswith("id name Fianchetto")
    assert lines[1].startswith("id author ")
    names = [line.removeprefix("option name ").partition(" type ")[0] for line in lines[2:-1]]
    assert set(names) >= {
        "Threads",
        "Hash",
        "MultiPV",
        "Ponder",
        "UCI_ShowWDL",
        "Style",
        "Simulations",
        "CPuct",
    }
    assert set(names) >= {
        "Temperature",
        "Seed",
        "Checkpoint",
        "Move Overhead",
        "UCI_LimitStrength",
        "UCI_Elo",
    }


def test_nodes_are_what_was_asked_for_and_the_line_says_everything(talk: Talk) -> None:
    talk.say("setoption name UCI_ShowWDL value true")
    lines = talk.ask("position startpos", "go nodes 300")
    info = last_info(lines)
    assert info["nodes"] == "300"
    assert {
        "depth",
        "seldepth",
        "multipv",
        "score",
        "wdl",
        "nodes",
        "nps",
        "time",
        "hashfull",
        "pv",
    } == set(info)
    assert sum(int(word) for word in info["wdl"].split()) == 1000
    best, _, reply = lines[-1].removeprefix("bestmove ").partition(" ponder ")
    assert info["pv"].split()[:2] == [best, reply]
    board = chess.Board()
    for word in info["pv"].split():
        board.push_uci(word)  # raises where it is illegal
    assert len(info["pv"].split()) <= int(info["depth"]) <= int(info["seldepth"])


def test_go_while_thinking_is_answered_after_the_one_before(talk: Talk) -> None:
    talk.say("position startpos", "go infinite", "position startpos moves e2e4", "go nodes 20")
    first, second = talk.until("bestmove")[-1], talk.until("bestmove")[-1]
    assert chess.Move.from_uci(first.split()[1]) in START
    board = chess.Board()
    board.push_uci("e2e4")
    assert chess.Move.from_uci(second.split()[1]) in board.legal_moves
    assert talk.sync() == []


def test_stop_is_answered_within_a_round() -> None:
    counting = Counting(0.05)
    with Talk(counting) as talk:
        counting.hold_after(10)
        talk.say("position startpos", "go infinite")
        counting.wait_until_held()
        talk.sync("stop")
        evaluated = counting.rows
        counting.release()
        talk.until("bestmove")
        assert counting.rows == evaluated, "the round under way was the last"


@pytest.mark.parametrize("fen", [chess.STARTING_FEN, MATE_IN_ONE, MATED, STALEMATED])
@pytest.mark.parametrize(
    "go",
    ["go infinite", "go ponder nodes 5", "go ponder wtime 50 btime 50", "go ponder movetime 1"],
)
def test_no_answer_before_stop(fen: str, go: str) -> None:
    counting = Counting(0.002)
    with Talk(counting) as talk:
        endless = fen == chess.STARTING_FEN and "nodes" not in go
        if endless:
            counting.hold_after(100)  # 0.2 s, longer than any of the clocks above
        talk.say(f"position fen {fen}", go)
        if endless:
            counting.wait_until_held()
            counting.release()
        else:
            talk.until("info depth")  # the search is over
        assert not [line for line in talk.sync() if line.startswith("bestmove")]
        talk.say("stop")
        move = talk.until("bestmove")[-1].split()[1]
    board = chess.Board(fen)
    assert (
        move == "(none)" if board.is_game_over() else chess.Move.from_uci(move) in board.legal_moves
    )


def test_ponderhit_starts_the_movers_clock() -> None:
    counting = Counting(0.002)
    with Talk(counting) as talk:
        counting.hold_after(250)  # 0.5 s
        talk.say("position startpos moves e2e4 e7e5", "go ponder movetime 300")
        counting.wait_until_held()
        assert not [line for line in talk.sync("ponderhit") if line.startswith("bestmove")]
        hit = counting.clock.now
        counting.release()
        talk.until("bestmove")
        assert 0.25 < counting.clock.now - hit <= 0.3


def test_ponderhit_after_the_search_is_done_is_answered_at_once() -> None:
    counting = Counting()
    with Talk(counting) as talk:
        talk.say("position startpos moves e2e4 e7e5", "go ponder nodes 3")
        talk.until("info depth")
        evaluated = counting.rows
        talk.best("ponderhit")
        assert counting.rows == evaluated


@pytest.mark.parametrize("shuffle", ["g1f3 g8f6 f3g1 f6g8", "b1c3 b8c6 c3b1 c6b8"])
def test_a_position_600_moves_long_is_played_on(talk: Talk, shuffle: str) -> None:
    moves = " ".join([shuffle] * 150)
    assert (
        chess.Move.from_uci(talk.best(f"position startpos moves {moves}", "go nodes 30")) in START
    )


def test_a_long_game_told_move_by_move_is_followed_by_its_new_moves_alone(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[chess.Move] = []
    push = chess.Board.push

    def count(board: chess.Board, move: chess.Move) -> None:
        if threading.current_thread().name == "reading":
            played.append(move)
        push(board, move)

    monkeypatch.setattr(chess.Board, "push", count)
    words: list[str] = []
    for word in ["g1f3", "g8f6", "f3g1", "f6g8"] * 150:
        words.append(word)
        talk.say(f"position startpos moves {' '.join(words)}")
    talk.sync()
    assert len(played) == 600


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_depth_is_the_length_of_the_line(depth: int) -> None:
    with Talk(evaluate) as talk:
        assert int(last_info(talk.ask("position startpos", f"go depth {depth}"))["depth"]) >= depth


@pytest.mark.parametrize(
    "go",
    [
        "go wtime 1 btime 1",
        "go wtime 1 btime 1 winc 1 binc 1",
        "go wtime 0 btime 0",
        "go wtime -50 btime -50 movestogo 1",
        "go movetime 1",
        "go movetime 0",
        "go movetime -5",
        "go nodes 0",
        "go depth 0",
        "go movetime",
        "go wtime x btime x",
    ],
)
def test_a_clock_without_time_gets_an_answer_at_once(go: str) -> None:
    counting = Counting(0.05)
    with Talk(counting) as talk:
        evaluated = len(counting.batches)
        assert chess.Move.from_uci(talk.best("position startpos", go)) in START
        assert len(counting.batches) - evaluated <= 2


@pytest.mark.parametrize(
    "go", ["go wtime 150 btime 150", "go movetime 150", "go wtime 200 btime 200 winc 50 binc 50"]
)
def test_a_move_is_made_in_time_where_one_evaluation_takes_longer_than_there_is(go: str) -> None:
    counting = Counting(0.4)
    with Talk(counting) as talk:
        evaluated = counting.rows
        assert chess.Move.from_uci(talk.best("position startpos", go)) in START
        assert counting.rows == evaluated


def test_movetime_is_kept_where_rounds_are_long() -> None:
    counting = Counting(0.03)
    with Talk(counting) as talk:
        for _ in range(3):
            said = counting.clock.now
            talk.best("position startpos", "go movetime 300")
            assert 0.15 < counting.clock.now - said < 0.3


def test_leaves_go_together_where_time_is_the_limit_and_one_by_one_where_nodes_are() -> None:
    slow = Counting(0.002)
    with Talk(slow) as talk:
        slow.batches.clear()
        talk.best("position startpos", "go nodes 30")
        assert set(slow.batches) == {1}
        talk.best("position startpos moves d2d4", "go movetime 600")
        assert max(slow.batches) == 8
        slow.batches.clear()
        talk.say("setoption name Leaves value 1")
        talk.best("position startpos moves d2d4", "go movetime 300")
        assert set(slow.batches) == {1}


def test_a_thousand_new_games_are_searched_in_the_same_memory(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Search] = []

    def make(*arguments: Any, **options: Any) -> Search:
        made.append(Search(*arguments, **options))
        return made[-1]

    monkeypatch.setattr("engine.player.player.Search", make)
    for number in range(1000):
        talk.say("ucinewgame", "position startpos")
        if number % 100 == 0:
            talk.best("go nodes 1")
    talk.sync()
    assert len(made) == 1


def test_an_evaluator_that_breaks_costs_no_game() -> None:
    counting = Counting()
    with Talk(counting) as talk:
        counting.broken = True
        talk.say("debug on")
        lines = talk.ask("position startpos", "go nodes 50")
        assert (
            lines[0]
            == "info string error, a simpler move is played: RuntimeError: 'out of\\nmemory'"
        )
        assert [line for line in lines if "Traceback" in line]
        assert chess.Move.from_uci(lines[-1].split()[1]) in START
        counting.broken = False
        talk.say("debug off")
        lines = talk.ask("position startpos", "go nodes 50")
        assert not [line for line in lines if line.startswith("info string")]


GOES = [
    "go nodes 3",
    "go movetime 1",
    "go infinite",
    "go ponder nodes 2",
    "go wtime 20 btime 20",
    "go depth 1",
]
GOES += ["go mate 1", "go", "go wtime", "go nodes 2 searchmoves a2a3", "go x"]
POSITIONS = [
    "position startpos",
    "position startpos moves e2e4",
    "position startpos moves e2e4 e7e5 g1f3",
    "position fen x",
]
POSITIONS += [f"position fen {fen}" for fen in (MATE_IN_ONE, MATED, STALEMATED)]
SETTINGS = [
    "Hash value 1",
    "Hash value 2",
    "MultiPV value 3",
    "Style value policy",
    "Style value human",
    "Style value search",
    "UCI_LimitStrength value true",
    "UCI_LimitStrength value false",
    "Seed value 5",
    "",
]
OTHERS = ["stop", "ponderhit", "ucinewgame", "isready", "uci", "debug off", "x", ""]
SAID = st.sampled_from(
    [*GOES, *POSITIONS, *OTHERS, *(f"setoption name {setting}" for setting in SETTINGS)]
)


@pytest.fixture(scope="module")
def long_talk() -> Iterator[Talk]:
    with Talk() as talk:
        yield talk


@settings(max_examples=150)
@given(said=st.lists(SAID, max_size=12))
def test_every_go_has_one_answer_whatever_is_said_around_it(
    long_talk: Talk, said: list[str]
) -> None:
    long_talk.say(*said, "stop", "isready")
    asked = sum(line.startswith("go") for line in said)
    answers = 0
    while answers < asked:
        answers += long_talk.until("bestmove")[-1].startswith("bestmove")
    long_talk.say("position startpos moves d2d4 d7d5", "go nodes 2")
    board = chess.Board()
    board.push_uci("d2d4")
    board.push_uci("d7d5")
    assert chess.Move.from_uci(long_talk.until("bestmove")[-1].split()[1]) in board.legal_moves
    long_talk.say("isready")
    assert not [line for line in long_talk.until("readyok") if line.startswith("bestmove")]
