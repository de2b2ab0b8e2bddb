"""The UCI engine's search and options: the tree kept between moves, what each option changes, what
the memory bounds."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import ClassVar

import chess
import numpy as np
import pytest
from numpy.typing import NDArray

from engine.encoding.planes import label_of
from engine.encoding.views import NO_LAST_MOVE
from engine.errors import UserError
from engine.evaluation.evaluator import Evaluator, uniform
from engine.evaluation.handwritten import evaluate
from engine.search.human import Correction
from engine.uci.options import LADDER
from tests.engine.uci.uci_talk import Counting, Talk, last_info, words_of

START = set(chess.Board().legal_moves)


@pytest.fixture
def talk() -> Iterator[Talk]:
    with Talk() as talk:
        yield talk


def test_the_tree_is_kept_when_the_game_goes_on() -> None:
    counting = Counting()
    with Talk(counting) as talk:
        lines = talk.ask("position startpos", "go nodes 400")
        _, best, _, reply = lines[-1].split()
        counting.rows = 0
        talk.best(f"position startpos moves {best} {reply}", "go nodes 1")
        assert counting.rows <= 1, "the root was known"
        counting.rows = 0
        talk.best("ucinewgame", f"position startpos moves {best} {reply}", "go nodes 1")
        assert counting.rows == 2, "root and leaf"


def test_the_kept_tree_stands_at_the_right_position(talk: Talk) -> None:
    board = chess.Board()
    for _ in range(30):
        words = " ".join(move.uci() for move in board.move_stack)
        info = last_info(
            talk.ask(
                f"position startpos moves {words}" if words else "position startpos", "go nodes 60"
            )
        )
        line = board.copy()
        for word in info["pv"].split():
            line.push_uci(word)
        board.push_uci(info["pv"].split()[0])
    assert len(board.move_stack) == 30


def test_one_seed_one_game() -> None:
    games = []
    for _ in range(2):
        with Talk(evaluate) as talk:
            talk.say("setoption name Temperature value 1.0", "setoption name Seed value 7")
            words: list[str] = []
            for _ in range(6):
                words.append(talk.best(f"position startpos moves {' '.join(words)}", "go nodes 40"))
            games.append(words)
    assert games[0] == games[1]


def test_temperature_varies_the_moves_and_seeds_differ(talk: Talk) -> None:
    talk.say("setoption name Temperature value 1")
    moves = set()
    for seed in range(12):
        talk.say(f"setoption name Seed value {seed}", "ucinewgame")
        moves.add(talk.best("position startpos", "go nodes 60"))
    assert len(moves) > 2


def test_policy_plays_the_likeliest_move_for_one_evaluation() -> None:
    counting = Counting()

    def keen(planes_BP: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        logits_BA, wdl_B3 = counting(planes_BP)
        return logits_BA + np.arange(4096, dtype=np.float32), wdl_B3

    with Talk(keen) as talk:
        talk.say("setoption name Style value policy")
        counting.rows = 0
        wanted = max(START, key=lambda move: label_of(move, chess.WHITE))
        assert talk.best("position startpos", "go infinite", "stop") == wanted.uci()
        assert counting.rows == 1


class Listening:
    """Likes every move alike, and keeps what it was given."""

    columns: ClassVar = {
        "last_move": NO_LAST_MOVE,
        "last_move_2": NO_LAST_MOVE,
        "elo": 0,
        "clock": 65535,
    }

    def __init__(self) -> None:
        self.given: list[dict[str, list[int]]] = []

    def __call__(
        self, planes_BP: NDArray[np.uint64], columns: Mapping[str, NDArray[np.uint16]] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        self.given.append({name: column.tolist() for name, column in (columns or {}).items()})
        return uniform(planes_BP)


def test_policy_is_told_the_moves_of_the_game_and_the_clock_and_search_is_not() -> None:
    evaluator = Listening()
    with Talk(evaluator) as talk:
        evaluator.given.clear()
        talk.best("position startpos moves e2e4 c7c5", "go nodes 4")
        assert all(not given for given in evaluator.given)
        talk.say("setoption name Style value policy")
        evaluator.given.clear()
        talk.best("position startpos moves e2e4 c7c5", "go nodes 1")
        talk.best("position startpos", "go wtime 61900 btime 500 winc 2000")
    # White sees the eighth rank first: c7c5 is 8 + 2 to 24 + 2, his own e2e4 48 + 4 to 32 + 4
    assert evaluator.given == [
        {"last_move": [10 * 64 + 26], "last_move_2": [52 * 64 + 36]},
        {"last_move": [NO_LAST_MOVE], "last_move_2": [NO_LAST_MOVE], "clock": [61]},
    ]


class Calibrated(Listening):
    """Likes g1f3 three times as much as each other move, whatever the rating; knows how a search
    corrects it."""

    corrections: ClassVar = {
        "likelihood": Correction([1000, 2000], [0.0, 0.0], [1.0, 1.0], 10),
        "strength": Correction([1000, 2000], [0.0, 500.0], [1.0, 1.0], 10),
    }

    def __call__(
        self, planes_BP: NDArray[np.uint64], columns: Mapping[str, NDArray[np.uint16]] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        logits_BA, _ = super().__call__(planes_BP, columns)
        logits_BA = logits_BA.copy()
        logits_BA[:, label_of(chess.Move.from_uci("g1f3"), chess.WHITE)] = np.log(3.0)
        return logits_BA, evaluate(planes_BP)[1]


QUEEN = "position fen 4k3/8/8/3q4/4P3/8/8/4K3 w - - 0 1"  # exd5 wins a queen


def test_human_style_draws_from_the_policy_of_the_rating_after_a_search() -> None:
    evaluator = Calibrated()
    with Talk(evaluator) as talk:
        talk.say("setoption name Style value human", "setoption name Rating value 1700")
        evaluator.given.clear()
        info = last_info(
            talk.ask("position startpos moves e2e4 c7c5", "go wtime 61900 btime 60000")
        )
        assert evaluator.given[0] == {
            "last_move": [10 * 64 + 26],
            "last_move_2": [52 * 64 + 36],
            "elo": [1700],
            "clock": [61],
        }
        assert info["nodes"] == "10", "the number that the correction was fitted for"
        assert len(evaluator.given) > 5
        assert not any(evaluator.given[1:]), "the search knows no ratings"
        talk.say("setoption name Simulations value 3")
        assert last_info(talk.ask("position startpos", "go"))["nodes"] == "3"
        drawn = []
        for seed in range(120):
            talk.say(f"setoption name Seed value {seed}")
            drawn.append(talk.best("position startpos", "go nodes 1"))
    assert 4 <= drawn.count("g1f3") <= 30, "16 of 120 are expected: 3 in 22"
    assert len(set(drawn)) > 12


def test_human_strength_sees_what_the_search_sees_at_a_high_rating_only() -> None:
    with Talk(Calibrated()) as talk:
        talk.say("setoption name Style value human-strength", "setoption name Rating value 2000")
        assert {
            talk.best(f"setoption name Seed value {seed}", QUEEN, "go") for seed in range(8)
        } == {"e4d5"}
        assert talk.best(QUEEN, "go searchmoves e1e2") == "e1e2"
        talk.say("setoption name Rating value 1000")
        assert (
            len({talk.best(f"setoption name Seed value {seed}", QUEEN, "go") for seed in range(8)})
            > 1
        )


def test_limited_strength_plays_at_the_rating_that_was_measured_to_have_it() -> None:
    low, high = LADDER[0], LADDER[-1]
    assert all(
        here < there for one in zip(*LADDER, strict=True) for here, there in pairwise(one)
    ), "it is monotone"
    evaluator = Calibrated()
    with Talk(evaluator) as talk:
        talk.say("uci")
        line = next(line for line in talk.until("uciok") if " UCI_Elo " in line)
        assert line.endswith(f"min {low[1]} max {high[1]}")
        talk.say("setoption name UCI_LimitStrength value true")
        for rating, elo in (low, high):
            talk.say(f"setoption name UCI_Elo value {elo}")
            evaluator.given.clear()
            talk.best("position startpos", "go movetime 1000")
            assert evaluator.given[0]["elo"] == [rating]
        assert talk.complaint(f"setoption name UCI_Elo value {high[1] + 1}").startswith(
            "UCI_Elo is between"
        )


def test_a_network_that_was_not_calibrated_or_reads_no_ratings_says_so_and_plays_on() -> None:
    with Talk(uniform) as talk:
        talk.say("setoption name Style value human", "setoption name Rating value 1500")
        lines = talk.ask("position startpos", "go")
        assert (
            lines[0]
            == "info string Rating 1500 changes no probabilities: the network reads no ratings"
        )
        assert lines[1].startswith("info string the policy alone is played: `fianchetto calibrate`")
        assert chess.Move.from_uci(lines[-1].split()[1]) in START


def test_without_time_for_a_search_a_human_move_is_the_policys() -> None:
    calibrated = Counting(0.01, Calibrated())
    calibrated.columns, calibrated.corrections = Calibrated.columns, Calibrated.corrections  # type: ignore[attr-defined]
    with Talk(calibrated) as talk:
        talk.say("setoption name Style value human")
        assert last_info(talk.ask("position startpos", "go movetime 1000"))["nodes"] == "10"
        assert last_info(talk.ask("position startpos", "go movetime 60"))["nodes"] == "1"


def test_a_human_move_of_many_simulations_is_stopped() -> None:
    calibrated = Counting(0.0, Calibrated())
    calibrated.columns, calibrated.corrections = Calibrated.columns, Calibrated.corrections  # type: ignore[attr-defined]
    with Talk(calibrated) as talk:
        talk.say("setoption name Style value human", "setoption name Simulations value 1000000000")
        calibrated.hold_after(20)
        talk.say("position startpos", "go infinite")
        calibrated.wait_until_held()
        talk.sync("stop")
        calibrated.release()
        assert talk.until("bestmove")[-1].split()[1] in {move.uci() for move in START}
        assert len(calibrated.batches) < 100


def test_policy_draws_at_a_temperature_by_the_probabilities() -> None:
    often, seldom = (label_of(chess.Move.from_uci(word), chess.WHITE) for word in ("g1f3", "e2e4"))

    def two(planes_BP: NDArray[np.uint64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        logits_BA, wdl_B3 = (part.copy() for part in uniform(planes_BP))
        # three in four, one in four
        logits_BA[:, often], logits_BA[:, seldom] = 30 + np.log(3.0), 30
        return logits_BA, wdl_B3

    with Talk(two) as talk:
        talk.say("setoption name Style value policy")
        assert talk.best("position startpos", "go nodes 1") == "g1f3"
        talk.say("setoption name Temperature value 1e-310")
        assert talk.best("position startpos", "go nodes 1") == "g1f3"
        talk.say("setoption name Temperature value 1")
        drawn = []
        for seed in range(200):
            talk.say(f"setoption name Seed value {seed}")
            drawn.append(talk.best("position startpos", "go nodes 1"))
        again = talk.best("position startpos", "go nodes 1")
    assert again == drawn[-1], "a seed is one game"
    assert set(drawn) == {"g1f3", "e2e4"}
    assert 125 <= drawn.count("g1f3") <= 175, "150 give or take four standard deviations"


def test_multipv_shows_so_many_moves_best_first(talk: Talk) -> None:
    talk.say("setoption name MultiPV value 5")
    lines = talk.ask("position startpos", "go nodes 500")
    infos = [words_of(line) for line in lines if line.startswith("info depth")][-5:]
    assert [info["multipv"] for info in infos] == ["1", "2", "3", "4", "5"]
    assert len({info["pv"].split()[0] for info in infos}) == 5
    assert lines[-1].split()[1] == infos[0]["pv"].split()[0]


def test_simulations_bound_a_move_that_nothing_else_bounds(talk: Talk) -> None:
    talk.say("setoption name Simulations value 32")
    assert last_info(talk.ask("position startpos", "go"))["nodes"] == "32"
    with Talk(Counting(0.001)) as timed:
        timed.say("setoption name Simulations value 32")
        lines = timed.ask("position startpos moves e2e4", "go wtime 600000 btime 600000")
        assert last_info(lines)["nodes"] == "32"


def test_the_search_goes_on_with_a_full_hash(talk: Talk) -> None:
    talk.say("setoption name Hash value 1")
    lines = talk.ask("position startpos", "go nodes 4000")
    assert last_info(lines)["nodes"] == "4000"
    assert int(last_info(lines)["hashfull"]) > 900
    assert talk.best("position startpos", "go depth 60") in {move.uci() for move in START}, (
        "and never hangs"
    )


def test_checkpoint_and_threads_load_a_player_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.uci.options.cores", lambda: 4)
    asked: list[tuple[str | None, int]] = []

    def load(checkpoint: str | None, threads: int) -> Evaluator:
        asked.append((checkpoint, threads))
        if checkpoint == "/nothing":
            raise UserError("there is no network")
        if checkpoint == "/trap":
            raise RuntimeError("a bug")
        return evaluate if checkpoint else uniform

    queen_for_nothing = ("position fen 4k3/8/8/3q4/4P3/8/8/4K3 w - - 0 1", "go nodes 2")
    with Talk(load=load) as talk:
        assert last_info(talk.ask(*queen_for_nothing))["score"] == "cp 0"
        assert (
            talk.complaint("setoption name Checkpoint value /nothing")
            == "'/nothing' is not played with: there is no network"
        )
        assert talk.complaint("setoption name Checkpoint value /trap").endswith(
            "RuntimeError: 'a bug'"
        )
        assert last_info(talk.ask(*queen_for_nothing))["score"] == "cp 0", "the player before stays"
        talk.say("setoption name Checkpoint value /my net")
        assert last_info(talk.ask(*queen_for_nothing))["score"] != "cp 0"
        talk.say(
            "setoption name Threads value 2", "setoption name Checkpoint value <empty>", "isready"
        )
        talk.until("readyok")
        talk.say("setoption name Rating value 1500", "isready")
        talk.until("readyok")
    assert asked == [
        (None, 1),
        ("/nothing", 1),
        ("/trap", 1),
        ("/my net", 1),
        ("/my net", 2),
        (None, 2),
    ]


def test_the_network_gets_no_more_threads_than_there_are_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.uci.options.cores", lambda: 4)
    given = []

    def load(_checkpoint: str | None, threads: int) -> Evaluator:
        given.append(threads)
        return uniform

    with Talk(load=load) as talk:
        for value in (2, 1024, 4):
            talk.say(f"setoption name Threads value {value}", "isready")
            talk.until("readyok")
    assert given == [1, 2, 4], "1024 is 4, and 4 after it loads nothing"
