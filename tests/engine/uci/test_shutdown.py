"""The UCI engine answers what it was asked before its input or output ends, and then it ends
too."""

import threading

import chess
import pytest

from engine.evaluation.evaluator import Evaluator, uniform
from tests.engine.uci.uci_talk import Counting, Talk, last_info
from tests.waiting import LONG

START = set(chess.Board().legal_moves)


def test_the_end_of_the_input_ends_the_engine() -> None:
    with Talk() as talk:
        talk.say("position startpos", "go infinite")
        talk.end()
        assert talk.until("bestmove")
        assert talk.error is None


@pytest.mark.parametrize("end", ["quit", None])
@pytest.mark.parametrize(
    ("go", "nodes"),
    [
        ("go nodes 30", 30),
        ("go depth 2", None),
        ("go movetime 50", None),
        ("go wtime 900 btime 900", None),
        ("go infinite", None),
        ("go ponder nodes 3", None),
        ("go", None),
    ],
)
def test_what_was_asked_while_the_player_is_loaded_is_answered_before_the_end(
    end: str | None, go: str, nodes: int | None
) -> None:
    """A machine that compiles its kernels takes a minute to load; a program that pipes its words in
    is long at their end."""
    loaded = threading.Event()

    def load(checkpoint: str | None, threads: int) -> Evaluator:
        assert loaded.wait(LONG)
        return uniform

    with Talk(load=load, ready=False) as talk:
        talk.say("position startpos", go, *([end] if end else []))
        talk._output.close()
        assert not [line for line in talk.drain() if line.startswith("bestmove")]
        loaded.set()
        lines = talk.until("bestmove")
        assert chess.Move.from_uci(lines[-1].split()[1]) in START
        assert nodes is None or last_info(lines)["nodes"] == str(nodes)
        talk.end()
        assert talk.error is None


@pytest.mark.parametrize("go", ["go nodes 2000", "go movetime 300"])
def test_quit_waits_for_a_search_that_ends_by_itself(go: str) -> None:
    with Talk(Counting(0.001)) as talk:
        talk.say("position startpos", go, "quit")
        lines = talk.until("bestmove")
        if "nodes" in go:
            assert last_info(lines)["nodes"] == "2000"
        if "movetime" in go:
            assert int(last_info(lines)["time"]) >= 200


def test_a_reader_that_is_gone_ends_the_engine() -> None:
    gone = threading.Event()
    with Talk() as talk:

        def broken(text: str) -> None:
            gone.set()
            raise BrokenPipeError

        talk.engine._write = broken
        talk.say("position startpos", "go nodes 5")
        assert gone.wait(LONG)
        talk.say("isready")
        talk.end()
        assert isinstance(talk.error, BrokenPipeError)
