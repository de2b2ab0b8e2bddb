"""The UCI engine: one legal answer to every `go`, in time, and an end when it is asked for."""

import threading
from collections.abc import Iterator

import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.evaluation.evaluator import Evaluator, uniform
from tests.engine.search.stubs import board_of
from tests.engine.uci.test_transcripts import MATE_IN_ONE, MATED, STALEMATED
from tests.engine.uci.uci_talk import Counting, Talk, last_info
from tests.waiting import HANG_TIMEOUT_SECONDS

START = {move.uci() for move in chess.Board().legal_moves}
QUIET = "position startpos moves e2e4 e7e5 g1f3 b8c6"


@pytest.fixture(scope="module")
def talk() -> Iterator[Talk]:
    with Talk() as talk:
        yield talk


def test_the_last_info_line_has_all_fields_and_the_requested_nodes() -> None:
    with Talk() as talk:
        talk.say("setoption name UCI_ShowWDL value true")
        lines = talk.ask("position startpos", "go nodes 300")
    info = last_info(lines)
    assert info["nodes"] == "300"
    fields = {"depth", "seldepth", "multipv", "score", "wdl", "nodes", "nps", "time", "hashfull"}
    assert set(info) == fields | {"pv"}
    assert sum(int(word) for word in info["wdl"].split()) == 1000
    best, _, reply = lines[-1].removeprefix("bestmove ").partition(" ponder ")
    assert info["pv"].split()[:2] == [best, reply]
    board = chess.Board()
    for word in info["pv"].split():
        board.push_uci(word)  # raises for an illegal move
    assert len(info["pv"].split()) <= int(info["depth"]) <= int(info["seldepth"])


def test_stop_ends_the_search_after_the_current_round() -> None:
    counting = Counting(0.05)
    with Talk(counting) as talk:
        counting.hold_after(10)
        talk.say("position startpos", "go infinite")
        counting.wait_until_held()
        talk.sync("stop")
        evaluated = counting.rows
        counting.release()
        talk.until("bestmove")
        assert counting.rows == evaluated


@pytest.mark.parametrize(
    ("fen", "go"),
    [
        (chess.STARTING_FEN, "go ponder wtime 50 btime 50"),
        (chess.STARTING_FEN, "go ponder nodes 5"),
        (MATE_IN_ONE, "go infinite"),
        (MATED, "go ponder nodes 5"),
    ],
)
def test_a_ponder_or_infinite_search_answers_only_after_stop(fen: str, go: str) -> None:
    counting = Counting(0.002)
    with Talk(counting) as talk:
        if is_timed := "wtime" in go:
            counting.hold_after(100)  # 0.2 s, longer than the clock
        talk.say(f"position fen {fen}", go)
        if is_timed:
            counting.wait_until_held()
            counting.release()
        else:
            talk.until("info depth")  # the search has ended
        assert not [line for line in talk.sync() if line.startswith("bestmove")]
        talk.say("stop")
        move = talk.until("bestmove")[-1].split()[1]
    legal = {one.uci() for one in chess.Board(fen).legal_moves}
    assert move in (legal or {"(none)"})


def test_ponderhit_starts_the_movers_clock() -> None:
    counting = Counting(0.002)
    with Talk(counting) as talk:
        counting.hold_after(250)  # 0.5 s, more than the time for the move
        talk.say(QUIET, "go ponder movetime 300")
        counting.wait_until_held()
        assert not [line for line in talk.sync("ponderhit") if line.startswith("bestmove")]
        ponderhit = counting.clock.now
        counting.release()
        assert int(last_info(talk.until("bestmove"))["nodes"]) > 250
        assert 0.25 < counting.clock.now - ponderhit <= 0.3
        talk.say("position startpos moves e2e4 e7e5", "go ponder nodes 3")
        talk.until("info depth")
        evaluated = counting.rows
        talk.best("ponderhit")
        assert counting.rows == evaluated, "the search had ended before"


WITHOUT_TIME = ("wtime 1 btime 1", "wtime 1 btime 1 winc 1 binc 1", "wtime 0 btime 0")
WITHOUT_TIME += ("wtime -50 btime -50 movestogo 1", "movetime 1", "movetime 0", "movetime -5")
WITHOUT_TIME += ("nodes 0", "depth 0", "movetime", "wtime x btime x")


def test_without_time_an_answer_takes_at_most_two_batches() -> None:
    counting = Counting(0.05)
    with Talk(counting) as talk:
        for limits in WITHOUT_TIME:
            evaluated = len(counting.batches)
            assert talk.best("ucinewgame", "position startpos", f"go {limits}") in START
            assert len(counting.batches) - evaluated <= 2, limits


def test_moves_are_in_time_even_if_rounds_are_long() -> None:
    counting = Counting(0.4)
    with Talk(counting) as talk:
        evaluated = counting.rows
        for go in ("go wtime 150 btime 150", "go movetime 150"):
            assert talk.best("position startpos", go) in START
        assert counting.rows == evaluated
        counting.seconds = 0.03
        for _ in range(3):
            start_time = counting.clock.now
            talk.best("position startpos", "go movetime 300")
            assert counting.clock.now - start_time < 0.3


def test_a_new_tree_is_searched_on_a_clock_as_with_movetime() -> None:
    clock = "wtime 8000 btime 8000"
    with Talk(Counting(0.002)) as talk:
        for limits in (
            *(clock, f"{clock} winc 100 binc 100", f"{clock} movestogo 40", f"{clock} depth 30"),
            *("wtime 400 btime 400 movestogo 1", f"{clock} mate 3", "btime 8000"),
        ):
            info = last_info(talk.ask("ucinewgame", QUIET, f"go {limits}"))
            milliseconds = int(info["time"]) + 20  # the default of Move Overhead
            timed = last_info(talk.ask("ucinewgame", QUIET, f"go movetime {milliseconds}"))
            assert int(info["nodes"]) >= max(int(timed["nodes"]) / 2, 20), limits
        one_move = "position fen 7k/8/8/8/8/8/r7/7K w - - 0 1"
        lines = talk.ask(one_move, "go wtime 600000 btime 600000")
        assert lines[-1].split()[1] == "h1g1"
        assert int(last_info(lines)["time"]) < 1000, "a forced move is played at once"


def test_several_leaves_are_evaluated_together_only_if_time_is_the_limit() -> None:
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


def test_searchmoves_are_searched_even_if_the_kept_tree_is_deep_enough(talk: Talk) -> None:
    talk.ask(QUIET, "go nodes 3000")
    for limits in ("depth 3", "mate 2 nodes 40"):
        info = last_info(talk.ask(QUIET, f"go {limits} searchmoves a2a3 h2h4"))
        assert info["pv"].split()[0] in ("a2a3", "h2h4")
        assert int(info["nodes"]) > 2


def test_after_an_error_of_the_evaluator_a_simpler_move_is_played() -> None:
    counting = Counting()
    with Talk(counting) as talk:
        counting.broken = True
        talk.say("debug on")
        lines = talk.ask("position startpos", "go nodes 50")
        assert "playing a simpler move: RuntimeError: 'out of\\nmemory'" in lines[0]
        assert [line for line in lines if "Traceback" in line]
        assert lines[-1].split()[1] in START
        counting.broken = False
        talk.say("debug off")
        lines = talk.ask("position startpos", "go nodes 50")
        assert not [line for line in lines if line.startswith("info string")]


GOES = ("go nodes 3", "go movetime 1", "go infinite", "go ponder nodes 2", "go wtime 20 btime 20")
GOES += ("go depth 1", "go mate 1", "go", "go wtime", "go nodes 2 searchmoves a2a3", "go x")
LONG_GAME = " ".join(["startpos moves", *["g1f3 g8f6 f3g1 f6g8"] * 150])
POSITIONS = (LONG_GAME, "startpos", "startpos moves e2e4", "startpos moves e2e4 e7e5 g1f3", "fen x")
POSITIONS += tuple(f"fen {fen}" for fen in (MATE_IN_ONE, MATED, STALEMATED))
SETTINGS = ("Hash value 1", "Hash value 2", "MultiPV value 3", "Style value policy", "")
SETTINGS += ("Style value human", "Style value search", "UCI_LimitStrength value true")
SETTINGS += ("UCI_LimitStrength value false", "Seed value 5")
OTHER_COMMANDS = ("stop", "ponderhit", "ucinewgame", "isready", "uci", "debug off", "x", "")
COMMANDS = st.sampled_from(
    [
        *(GOES + OTHER_COMMANDS),
        *(f"position {position}" for position in POSITIONS),
        *(f"setoption name {setting}" for setting in SETTINGS),
    ]
)


@settings(max_examples=60)
@given(commands=st.lists(COMMANDS, max_size=12))
def test_every_go_has_one_answer_between_any_commands(talk: Talk, commands: list[str]) -> None:
    talk.say(*commands, "stop", "isready")
    goes, answers = sum(line.startswith("go") for line in commands), 0
    while answers < goes:
        answers += talk.until("bestmove")[-1].startswith("bestmove")
    talk.say("position startpos moves d2d4 d7d5", "go nodes 2")
    board = board_of(chess.STARTING_FEN, "d2d4 d7d5")
    assert chess.Move.from_uci(talk.until("bestmove")[-1].split()[1]) in board.legal_moves
    talk.say("isready")
    assert not [line for line in talk.until("readyok") if line.startswith("bestmove")]


def test_the_end_of_input_ends_an_infinite_search() -> None:
    with Talk() as talk:
        talk.say("position startpos", "go infinite")
        talk.end()
        assert talk.until("bestmove")
        assert talk.error is None


@pytest.mark.parametrize(
    ("end", "go"), [("quit", "go nodes 30"), (None, "go wtime 900 btime 900"), (None, "go")]
)
def test_a_go_during_loading_is_answered_before_the_engine_ends(end: str | None, go: str) -> None:
    """Compiling takes a minute; a script has sent all its commands and closed its pipe by then."""
    loaded = threading.Event()

    def load(checkpoint: str | None, threads: int) -> Evaluator:
        assert loaded.wait(HANG_TIMEOUT_SECONDS)
        return uniform

    with Talk(load=load, ready=False) as talk:
        talk.say("position startpos", go, *([end] if end else []))
        talk._output.close()
        assert not [line for line in talk.drain() if line.startswith("bestmove")]
        loaded.set()
        lines = talk.until("bestmove")
        assert lines[-1].split()[1] in START
        assert go != "go nodes 30" or last_info(lines)["nodes"] == "30"
        talk.end()
        assert talk.error is None


def test_a_closed_output_ends_the_engine() -> None:
    has_failed = threading.Event()
    with Talk() as talk:

        def fail(text: str) -> None:
            has_failed.set()
            raise BrokenPipeError

        talk.engine._write = fail
        talk.say("position startpos", "go nodes 5")
        assert has_failed.wait(HANG_TIMEOUT_SECONDS)
        talk.say("isready")
        talk.end()
        assert isinstance(talk.error, BrokenPipeError)
