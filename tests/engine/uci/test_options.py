"""Options of the UCI engine: what each one changes; the tree is kept between moves."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import chess
import numpy as np
import pytest
from numpy.typing import NDArray

from engine.encoding.planes import label_from_move
from engine.encoding.views import NO_LAST_MOVE
from engine.errors import UserError
from engine.evaluation.evaluator import Evaluator, uniform
from engine.evaluation.handwritten import evaluate
from engine.search.human import Correction
from engine.uci.options import STRENGTH_LADDER
from tests.engine.search.stubs import board_of
from tests.engine.uci.uci_talk import Counting, Talk, last_info

START = {move.uci() for move in chess.Board().legal_moves}
KNIGHT = label_from_move(chess.Move.from_uci("g1f3"), chess.WHITE)
QUEEN = "position fen 4k3/8/8/3q4/4P3/8/8/4K3 w - - 0 1"  # exd5 wins a queen


@pytest.fixture
def talk() -> Iterator[Talk]:
    with Talk() as talk:
        yield talk


def draw(talk: Talk, draws: int, position: str = "position startpos", go: str = "go") -> list[str]:
    """Return the moves for seeds 0 to `draws` - 1, each in a new game."""
    moves = []
    for seed in range(draws):
        talk.say(f"setoption name Seed value {seed}", "ucinewgame")
        moves.append(talk.best(position, go))
    return moves


class CalibratedEvaluator:
    """Evaluator that prefers g1f3 three to one, and records the columns of each call.

    In the style human-strength, rating 2000 plays the search's best move.
    """

    columns: ClassVar = {
        "last_move": NO_LAST_MOVE,
        "last_move_2": NO_LAST_MOVE,
        "elo": 0,
        "clock": 65535,
    }
    corrections: ClassVar = {
        "likelihood": Correction([1000, 2000], [0.0, 0.0], [1.0, 1.0], 10),
        "strength": Correction([1000, 2000], [0.0, 500.0], [1.0, 1.0], 10),
    }

    def __init__(self) -> None:
        self.columns_of_calls: list[dict[str, list[int]]] = []

    def __call__(
        self, planes_BP: NDArray[np.uint64], columns: Mapping[str, NDArray[np.uint16]] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        self.columns_of_calls.append(
            {name: column.tolist() for name, column in (columns or {}).items()}
        )
        logits_BA = np.zeros((len(planes_BP), 4096), np.float32)
        logits_BA[:, KNIGHT] = np.log(3.0)
        return logits_BA, evaluate(planes_BP)[1]


def count_calibrated(seconds: float) -> Counting:
    """Return a CalibratedEvaluator on a fake clock."""
    evaluator = CalibratedEvaluator()
    counting: Any = Counting(seconds, evaluator)
    counting.columns, counting.corrections = evaluator.columns, evaluator.corrections
    return counting


def test_the_tree_is_kept_when_the_game_goes_on() -> None:
    counting = Counting()
    with Talk(counting) as talk:
        lines = talk.ask("position startpos", "go nodes 400")
        _, best, _, reply = lines[-1].split()
        counting.rows = 0
        talk.best(f"position startpos moves {best} {reply}", "go nodes 1")
        assert counting.rows <= 1, "the root is in the kept tree"
        info = last_info(talk.ask(f"position startpos moves {best} {reply}", "go nodes 60"))
        board_of(chess.STARTING_FEN, [best, reply, *info["pv"].split()])  # raises if one is illegal
        counting.rows = 0
        talk.best("ucinewgame", f"position startpos moves {best} {reply}", "go nodes 1")
        assert counting.rows == 2, "a new tree evaluates root and leaf"


def test_with_a_temperature_the_seed_determines_the_moves(talk: Talk) -> None:
    talk.say("setoption name Temperature value 1")
    games = [draw(talk, 12, go="go nodes 60") for _ in range(2)]
    assert games[0] == games[1]
    assert len(set(games[0])) > 2


def test_only_a_policy_reads_last_moves_and_the_clock() -> None:
    evaluator = CalibratedEvaluator()
    with Talk(evaluator) as talk:
        evaluator.columns_of_calls.clear()
        talk.best("position startpos moves e2e4 c7c5", "go nodes 4")
        assert all(not columns for columns in evaluator.columns_of_calls)
        talk.say("setoption name Style value policy")
        evaluator.columns_of_calls.clear()
        talk.best("position startpos moves e2e4 c7c5", "go nodes 1")
        talk.best("position startpos", "go wtime 61900 btime 500 winc 2000")
    # in White's view, c7c5 is from 8 + 2 to 24 + 2, and e2e4 from 48 + 4 to 32 + 4
    assert evaluator.columns_of_calls == [
        {"last_move": [10 * 64 + 26], "last_move_2": [52 * 64 + 36]},
        {"last_move": [NO_LAST_MOVE], "last_move_2": [NO_LAST_MOVE], "clock": [61]},
    ]


def test_a_policy_reads_the_time_control_of_the_clock_or_of_the_option() -> None:
    evaluator = CalibratedEvaluator()
    evaluator.columns = {"base": 65535, "increment": 255}  # type: ignore[misc]
    games = (
        ("position startpos", "go wtime 180000 btime 500 winc 2000", [180, 2]),
        ("position startpos moves e2e4 e7e5", "go wtime 99000 btime 500 winc 2000", [180, 2]),
        ("position startpos moves d2d4 d7d5", "go wtime 60000 btime 500 winc 0", [60, 0]),
        ("position startpos", "go nodes 1", []),
    )
    with Talk(evaluator) as talk:
        talk.say("setoption name Style value policy")
        for position, go, wanted in games:
            evaluator.columns_of_calls.clear()
            talk.best(position, go)
            assert [value for (value,) in evaluator.columns_of_calls[0].values()] == wanted
        talk.say("setoption name Game Speed value Rapid")
        evaluator.columns_of_calls.clear()
        talk.best("position startpos", "go wtime 60000 btime 500")
        assert evaluator.columns_of_calls == [{"base": [600], "increment": [0]}]


def test_human_style_samples_the_policy_of_the_rating_after_a_search() -> None:
    evaluator = CalibratedEvaluator()
    with Talk(evaluator) as talk:
        talk.say("setoption name Style value human", "setoption name Rating value 1700")
        evaluator.columns_of_calls.clear()
        info = last_info(talk.ask("position startpos", "go wtime 61900 btime 60000"))
        assert evaluator.columns_of_calls[0].items() >= {"elo": [1700], "clock": [61]}.items()
        assert info["nodes"] == "10", "the simulations of the correction's fit"
        assert len(evaluator.columns_of_calls) > 5
        assert not any(evaluator.columns_of_calls[1:]), "only the root is evaluated with ratings"
        talk.say("setoption name Simulations value 3")
        assert last_info(talk.ask("position startpos", "go"))["nodes"] == "3"
        drawn = draw(talk, 120, go="go nodes 1")
    assert 4 <= drawn.count("g1f3") <= 30, "16 of 120 are expected: 3 in 22"


def test_human_strength_follows_the_search_only_at_a_high_rating() -> None:
    with Talk(CalibratedEvaluator()) as talk:
        talk.say("setoption name Style value human-strength", "setoption name Rating value 2000")
        assert set(draw(talk, 8, QUEEN)) == {"e4d5"}
        assert talk.best(QUEEN, "go searchmoves e1e2") == "e1e2"
        talk.say("setoption name Rating value 1000")
        assert len(set(draw(talk, 8, QUEEN))) > 1


def test_limited_strength_plays_at_the_rating_with_that_measured_strength() -> None:
    low, high = STRENGTH_LADDER[0], STRENGTH_LADDER[-1]
    evaluator = CalibratedEvaluator()
    with Talk(evaluator) as talk:
        talk.say("uci")
        line = next(line for line in talk.until("uciok") if " UCI_Elo " in line)
        assert line.endswith(f"min {low[1]} max {high[1]}")
        talk.say("setoption name UCI_LimitStrength value true")
        for rating, elo in (low, high):
            talk.say(f"setoption name UCI_Elo value {elo}")
            evaluator.columns_of_calls.clear()
            talk.best("position startpos", "go movetime 1000")
            assert evaluator.columns_of_calls[0]["elo"] == [rating]


def test_a_network_without_calibration_or_rating_input_warns_and_plays() -> None:
    with Talk(uniform) as talk:
        talk.say("setoption name Style value human", "setoption name Rating value 1500")
        lines = talk.ask("position startpos", "go")
    assert lines[0].startswith("info string Rating 1500 has no effect")
    assert "`fianchetto calibrate`" in lines[1]
    assert lines[-1].split()[1] in START


def test_human_style_plays_the_policy_without_time_and_can_be_stopped() -> None:
    counting = count_calibrated(0.01)
    with Talk(counting) as talk:
        talk.say("setoption name Style value human")
        assert last_info(talk.ask("position startpos", "go movetime 1000"))["nodes"] == "10"
        assert last_info(talk.ask("position startpos", "go movetime 60"))["nodes"] == "1"
        talk.say("setoption name Simulations value 1000000000")
        counting.hold_after(20)
        evaluated = counting.rows
        talk.say("position startpos", "go infinite")
        counting.wait_until_held()
        talk.sync("stop")
        counting.release()
        assert talk.until("bestmove")[-1].split()[1] in START
        assert counting.rows - evaluated < 100


def test_policy_style_plays_the_likeliest_move_or_samples_at_a_temperature() -> None:
    labels = [label_from_move(chess.Move.from_uci(word), chess.WHITE) for word in ("g1f3", "e2e4")]
    counting = Counting()

    def two(planes_BP: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        logits_BA, wdl_B3 = (part.copy() for part in counting(planes_BP))
        logits_BA[:, labels] = 30 + np.log(3.0), 30  # probabilities 3/4 and 1/4
        return logits_BA, wdl_B3

    with Talk(two) as talk:
        talk.say("setoption name Style value policy")
        counting.rows = 0
        assert talk.best("position startpos", "go infinite", "stop") == "g1f3"
        assert counting.rows == 1
        talk.say("setoption name Temperature value 1e-310")
        assert talk.best("position startpos", "go nodes 1") == "g1f3"
        talk.say("setoption name Temperature value 1")
        drawn = draw(talk, 200)
    assert set(drawn) == {"g1f3", "e2e4"}
    assert 125 <= drawn.count("g1f3") <= 175, "150, plus or minus four standard deviations"


def test_checkpoint_and_threads_load_the_player_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.uci.options.count_cores", lambda: 4)
    loads: list[tuple[str | None, int]] = []

    def load(checkpoint: str | None, threads: int) -> Evaluator:
        loads.append((checkpoint, threads))
        if checkpoint == "/nothing":
            raise UserError("there is no network")
        if checkpoint == "/trap":
            raise RuntimeError("a bug")
        return evaluate if checkpoint else uniform

    def score(talk: Talk) -> str:
        return last_info(talk.ask(QUEEN, "go nodes 2"))["score"]

    with Talk(load=load) as talk:
        assert score(talk) == "cp 0"
        for path, reason in (("/nothing", "there is no network"), ("/trap", "'a bug'")):
            assert talk.complaint(f"setoption name Checkpoint value {path}").endswith(reason)
        assert score(talk) == "cp 0", "the previous player is kept"
        talk.say("setoption name Checkpoint value /my net")
        assert score(talk) != "cp 0"
        for option in ("Threads value 2", "Checkpoint value <empty>", "Threads value 1024"):
            talk.sync(f"setoption name {option}")
        talk.sync("setoption name Threads value 4", "setoption name Rating value 1500")
    wanted = [(None, 1), ("/nothing", 1), ("/trap", 1), ("/my net", 1), ("/my net", 2), (None, 2)]
    # 1024 threads are limited to 4 cores, so setting 4 changes nothing
    assert loads == [*wanted, (None, 4)]
