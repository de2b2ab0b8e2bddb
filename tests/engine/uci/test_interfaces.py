"""What GUIs send and expect: rejected positions, several lines, slow loading, failures to load."""

import threading

import chess
import pytest

from engine.errors import UserError
from engine.evaluation.evaluator import Evaluator, uniform
from tests.engine.search.stubs import board_of
from tests.engine.uci.test_options import count_calibrated
from tests.engine.uci.uci_talk import Talk, words_of
from tests.waiting import HANG_TIMEOUT_SECONDS

REJECTED = [
    ("fen 4k3/4R3/8/8/8/8/8/4K3 w - - 0 1", "in check"),
    ("fen qqqqkqqq/qqqqqqqq/8/8/8/8/QQQQQQQQ/QQQQKQQQ w - - 0 1", "impossible position"),
    ("fen 6k1/8/8/2pP4/8/6n1/8/5K2 w - c6 0 1 moves d5c6 x", "illegal move"),
    ("fen nrbqkr1n/pppppppp/8/8/8/8/PPPPPPPP/NRBQKR1N w FBfb - 0 1", "Chess960"),
    ("startpos moves e2e4 0000", "illegal move"),
    ("", "startpos or fen"),
    ("startpos moves " + "g1f3 g8f6 f3g1 f6g8 " * 60_000, "skipped a line"),
]


def test_after_a_rejected_position_there_is_no_move_until_the_next_one() -> None:
    with Talk() as talk:
        for position, problem in REJECTED:
            assert problem in talk.complaint(f"position {position}")
            assert talk.ask("go nodes 5")[-1] == "bestmove (none)"
            talk.say("go infinite")
            assert not [line for line in talk.sync() if line.startswith("bestmove")]
            assert talk.ask("stop")[-1] == "bestmove (none)"
            assert talk.best("position startpos moves e2e4 e7e5", "go nodes 3") != "(none)"
            talk.complaint(f"position {position}")
            assert talk.best("ucinewgame", "go nodes 3") != "(none)"


SICILIAN = "e2e4 c7c5 g1f3 d7d6"
ANALYSES = [
    # MultiPV, style, position, moves, go, minimum number of reports
    (4, "search", chess.STARTING_FEN, SICILIAN, "go infinite", 3),
    (4, "search", chess.STARTING_FEN, SICILIAN, "go movetime 2000", 3),
    (3, "search", "7k/8/8/8/8/8/r7/7K w - - 0 1", "", "go depth 3", 1),
    (3, "policy", chess.STARTING_FEN, "e2e4", "go infinite", 1),
    (3, "human", chess.STARTING_FEN, "e2e4", "go infinite", 1),
]


def test_en_croissant_shows_every_report() -> None:
    """It shows complete reports whose lines have one depth that never decreases.

    It sends FENs and no `isready` (src-tauri/src/chess.rs).
    """
    counting = count_calibrated(0.002)
    with Talk(counting) as talk:
        for multipv, style, fen, moves, go, min_reports in ANALYSES:
            talk.say("setoption name UCI_Chess960 value false")
            options = (f"MultiPV value {multipv}", f"Style value {style}")
            talk.say(*(f"setoption name {option}" for option in options))
            talk.say(f"position fen {fen} moves {moves}" if moves else f"position fen {fen}")
            if go == "go infinite" and style == "search":
                counting.hold_after(500)  # 1 s
                talk.say(go)
                counting.wait_until_held()
                counting.release()
                talk.say("stop")
            else:
                talk.say(go, *(["stop"] if go == "go infinite" else []))
            width = min(multipv, board_of(fen, moves).legal_moves.count())
            lines = [line for line in talk.until("bestmove") if line.startswith("info depth")]
            fields = [words_of(line) for line in lines]
            ranks = [int(info["multipv"]) for info in fields]
            assert ranks == [*range(1, width + 1)] * (len(lines) // width)
            assert len(lines) // width >= min_reports, (style, go)
            depths = [int(info["depth"]) for info in fields]
            assert depths == sorted(depths)
            assert all(len(set(depths[at : at + width])) == 1 for at in range(0, len(lines), width))


def fail_to_load(checkpoint: str | None, threads: int) -> Evaluator:
    raise UserError("there is no network")


def test_isready_does_not_block_other_commands_during_loading() -> None:
    """A GUI that gives up on a slow start must be able to end the engine."""
    loaded = threading.Event()

    def load(checkpoint: str | None, threads: int) -> Evaluator:
        assert loaded.wait(HANG_TIMEOUT_SECONDS)
        return uniform

    with Talk(load=load, ready=False) as talk:
        talk.say("isready", "position startpos", "go nodes 2", "uci")
        assert "readyok" not in talk.until("uciok")
        loaded.set()
        assert "readyok" in talk.until("bestmove")
    loaded.clear()
    with Talk(load=load, ready=False) as talk:
        talk.say("isready", "uci")
        talk.until("uciok")
        talk.say("isready", "quit")
        talk.end()
        assert talk.error is None
        loaded.set()


def test_the_end_of_the_input_waits_for_readyok() -> None:
    with Talk(ready=False) as talk:
        talk.say("isready")
        talk.end()
        assert "readyok" in talk.drain()
        assert talk.error is None


@pytest.mark.parametrize("ask", ["isready", "go nodes 3"])
def test_a_failure_to_load_ends_the_engine(ask: str) -> None:
    with Talk(load=fail_to_load, ready=False) as talk:
        talk.say(ask)
        assert talk.until("info")[-1] == "info string there is no network"
        talk._thread.join(HANG_TIMEOUT_SECONDS)
        assert not talk._thread.is_alive()
        assert str(talk.error) == "there is no network"
