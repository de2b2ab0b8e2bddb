"""What graphical programs say and expect: refused positions, reports of several lines."""

import threading

import chess
import pytest

from engine.errors import UserError
from engine.evaluation.evaluator import Evaluator, uniform
from engine.evaluation.handwritten import evaluate
from tests.engine.uci.test_options import Calibrated
from tests.engine.uci.uci_talk import Counting, Talk, words_of
from tests.waiting import LONG

REFUSED = [
    ("position fen 8/8/8/4k3/8/8/8/8 w - - 0 1", "not a playable position"),
    ("position fen 4k3/4R3/8/8/8/8/8/4K3 w - - 0 1", "in check"),
    ("position fen qqqqkqqq/qqqqqqqq/8/8/8/8/QQQQQQQQ/QQQQKQQQ w - - 0 1", "no game leads to"),
    ("position fen 6k1/8/8/2pP4/8/6n1/8/5K2 w - c6 0 1 moves d5c6 x", "illegal move"),
    ("position fen nrbqkr1n/pppppppp/8/8/8/8/PPPPPPPP/NRBQKR1N w FBfb - 0 1", "Chess960"),
    ("position fen x", "not a FEN"),
    ("position startpos moves e2e4 e7e5 e4e5", "illegal move"),
    ("position startpos moves e2e4 0000", "illegal move"),
    ("position", "startpos or fen"),
    ("position startpos moves " + "g1f3 g8f6 f3g1 f6g8 " * 60_000, "is skipped"),
]


@pytest.mark.parametrize(("position", "why"), REFUSED, ids=[why + one[:30] for one, why in REFUSED])
def test_after_a_refused_position_there_is_no_move_until_the_next_one(
    position: str, why: str
) -> None:
    with Talk() as talk:
        talk.best("position startpos moves e2e4", "go nodes 3")
        assert why in talk.complaint(position)
        for go in ("go nodes 5", "go movetime 10", "go depth 2"):
            assert talk.ask(go)[-1] == "bestmove (none)"
        talk.say("go infinite")
        assert not [line for line in talk.sync() if line.startswith("bestmove")], "held until stop"
        assert talk.ask("stop")[-1] == "bestmove (none)"
        assert talk.best("position startpos moves e2e4 e7e5", "go nodes 3") != "(none)"
        talk.complaint(position)
        assert talk.best("ucinewgame", "go nodes 3") != "(none)", "a new game begins at the start"


def test_a_dead_en_passant_square_changes_no_answer() -> None:
    square = "position fen rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq {} 0 1"
    with Talk(evaluate) as talk:
        answers = []
        for name in ("e3", "-", "d6"):
            lines = talk.ask("ucinewgame", square.format(name), "go nodes 60")
            answers.append([words_of(lines[-2])["score"], words_of(lines[-2])["pv"], lines[-1]])
    assert answers[0] == answers[1] == answers[2]


class EnCroissant:
    """Shows reports as that program does (src-tauri/src/chess.rs).

    They are complete, and of one depth that does not fall.
    """

    def __init__(self, talk: Talk) -> None:
        self.talk, self.multipv = talk, 1
        self.shown = self.hidden = self.depth = 0
        self.lines: list[dict[str, str]] = []

    def set_options(self, fen: str, moves: str, **options: str) -> None:
        """Choose a position, as its `set_options` does: always by FEN, never with `isready`."""
        self.talk.say("setoption name UCI_Chess960 value false")
        for name, value in options.items():
            self.talk.say(f"setoption name {name} value {value}")
        self.talk.say(f"position fen {fen} moves {moves}" if moves else f"position fen {fen}")
        board = chess.Board(fen)
        for word in moves.split():
            board.push_uci(word)
        self.multipv = min(int(options.get("MultiPV", "1")), board.legal_moves.count())
        self.depth, self.lines = 0, []

    def hear(self, line: str) -> None:
        """Take a line, and show the report that it completes."""
        fields = words_of(line) if line.startswith("info depth") else {}
        if "pv" not in fields or int(fields["multipv"]) != len(self.lines) + 1:
            return
        self.lines.append(fields)
        if len(self.lines) == self.multipv:
            depths = {int(one["depth"]) for one in self.lines}
            fits = len(depths) == 1 and min(depths) >= self.depth
            self.shown, self.hidden = self.shown + fits, self.hidden + (not fits)
            self.depth, self.lines = max(depths), []


SICILIAN = "e2e4 c7c5 g1f3 d7d6"
ONE_MOVE = "7k/8/8/8/8/8/r7/7K w - - 0 1"
TRANSCRIPT = [
    # options, position, moves, how it thinks, reports shown at least
    ({"MultiPV": "4"}, chess.STARTING_FEN, "", "go infinite", 3),
    ({"MultiPV": "4"}, chess.STARTING_FEN, SICILIAN, "go infinite", 3),
    ({"MultiPV": "4"}, chess.STARTING_FEN, SICILIAN, "go movetime 2000", 3),
    ({"MultiPV": "3"}, ONE_MOVE, "", "go depth 3", 1),
    ({"MultiPV": "2"}, chess.STARTING_FEN, "e2e4", "go nodes 2000", 3),
    ({"MultiPV": "3", "Style": "policy"}, chess.STARTING_FEN, "e2e4", "go infinite", 1),
    ({"MultiPV": "3", "Style": "human"}, chess.STARTING_FEN, "e2e4", "go infinite", 1),
    ({"MultiPV": "5", "Style": "search"}, chess.STARTING_FEN, "e2e4 e7e5", "go nodes 40", 1),
]


def test_a_game_in_en_croissants_way_shows_every_report() -> None:
    counting = Counting(0.002, Calibrated())
    counting.columns, counting.corrections = Calibrated.columns, Calibrated.corrections  # type: ignore[attr-defined]
    with Talk(counting) as talk:
        for options, fen, moves, go, least in TRANSCRIPT:
            program = EnCroissant(talk)
            program.set_options(fen, moves, **options)
            endless = go == "go infinite"
            if endless and options.get("Style", "search") == "search":
                counting.hold_after(500)  # 1 s
                talk.say(go)
                counting.wait_until_held()
                counting.release()
                talk.say("stop")
            else:
                talk.say(go, *(["stop"] if endless else []))
            for line in talk.until("bestmove"):
                program.hear(line)
            assert (program.hidden, program.lines) == (0, [])
            assert program.shown >= least, (options, go)


def test_isready_keeps_nothing_waiting_while_kernels_compile() -> None:
    """A program that gives up on a slow start must be able to end the engine."""
    loaded = threading.Event()

    def load(checkpoint: str | None, threads: int) -> Evaluator:
        assert loaded.wait(LONG)
        return uniform

    with Talk(load=load, ready=False) as talk:
        talk.say("isready", "uci")
        talk.until("uciok")
        talk.say("isready", "quit")
        talk.end()
        assert talk.error is None
        loaded.set()


def test_the_end_of_the_input_waits_for_readyok_and_tells_a_failure() -> None:
    def fail(checkpoint: str | None, threads: int) -> Evaluator:
        raise UserError("there is no network")

    for load, error in (
        (lambda checkpoint, threads: uniform, "None"),
        (fail, "there is no network"),
    ):
        with Talk(load=load, ready=False) as talk:
            talk.say("isready")
            talk.end()
            assert ("readyok" in talk.drain()) == (load is not fail)
            assert str(talk.error) == error


def test_readyok_waits_for_the_player_and_comes_before_the_first_answer() -> None:
    loaded = threading.Event()

    def load(checkpoint: str | None, threads: int) -> Evaluator:
        assert loaded.wait(LONG)
        return uniform

    with Talk(load=load, ready=False) as talk:
        talk.say("isready", "position startpos", "go nodes 2", "uci")
        assert "readyok" not in talk.until("uciok")
        loaded.set()
        assert "readyok" in talk.until("bestmove")


def test_a_failure_to_load_ends_the_engine_at_isready_or_go() -> None:
    def load(checkpoint: str | None, threads: int) -> Evaluator:
        raise UserError("there is no network")

    for ask in ("isready", "go nodes 3"):
        with Talk(load=load, ready=False) as talk:
            talk.say(ask)
            assert talk.until("info")[-1] == "info string there is no network"
            talk._thread.join(LONG)
            assert not talk._thread.is_alive(), "although its input is open"
            assert str(talk.error) == "there is no network"
