"""A checkpoint as a player on boards, and the columns that networks read besides the planes."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import chess
import chess.variant
import numpy as np
import pytest

from engine.encoding.planes import label_from_move, legal_mask, planes_of
from engine.errors import UserError
from engine.match import Limit
from engine.match.players import Contestant, LocalSide, MoveRequest
from engine.player import Conditions
from engine.player.policy import read_columns
from engine.search.human import Correction
from model import load
from model.data.playouts import playout_rows
from model.inference.evaluator import NetworkEvaluator
from model.inference.player import ConditionError, GameOverError, Player
from model.network.device import DeviceError
from model.network.network import build
from model.network.preset import Preset
from model.network.presets import presets
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from tests.engine.uci.uci_talk import Talk, last_info
from tests.model.network.test_presets import DISTINCT, small
from tests.model.synthetic import TINY
from tests.model.test_checkpoint import make
from tests.waiting import HANG_TIMEOUT_SECONDS

RATED = replace(TINY, name="rated", condition="ratings_clock", condition_width=8)


@cache
def player(row: Preset) -> Player:
    """Return an untrained player."""
    return Player(NetworkEvaluator(build(row, seed=4), device="cpu", amp="off"))


def columns_of(row: Preset, board: chess.Board) -> dict[str, list[int]]:
    columns = read_columns(player(row).evaluator, [board], [Conditions()])
    return {name: column.tolist() for name, column in columns.items()}


def test_importing_model_does_not_import_torch_and_loading_does_not_import_its_compiler(
    tmp_path: Path,
) -> None:
    """Limits of torch's libraries are set before torch is imported."""
    make(tmp_path, row=replace(TINY, move_features_width=8))
    code = (
        "import os, sys, model; assert 'torch' not in sys.modules; model.load(sys.argv[1]); "
        "assert 'torch' in sys.modules; assert os.environ['GOMP_SPINCOUNT'] == '1000'; "
        "assert os.environ['LRU_CACHE_CAPACITY'] == '128'; "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("GOMP", "OMP_W"))
    }
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert (
        subprocess.run(command, env=variables, check=False, timeout=HANG_TIMEOUT_SECONDS).returncode
        == 0
    )


@pytest.mark.parametrize("row", DISTINCT, ids=DISTINCT.get)
def test_every_system_chooses_a_legal_move_for_both_sides(row: Preset) -> None:
    for turn in "wb":
        board = chess.Board(f"r3k2r/1P4P1/8/8/8/8/1p4p1/R3K2R {turn} KQkq - 0 1")
        choice = player(row).choose(board, 0.0)
        assert choice.move in board.legal_moves
        assert choice.move == next(iter(choice.probabilities))
        assert choice.move.promotion in (None, chess.QUEEN)


def test_probabilities_and_value_are_the_evaluators(tmp_path: Path) -> None:
    board = chess.Board("r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R b KQkq - 0 1")
    make(tmp_path, small(presets()["bishop"]))
    loaded = load(str(tmp_path), device="cpu", amp="off")
    columns, planes_BP = read_columns(loaded.evaluator, [board], [Conditions()]), planes_of([board])
    logits, wdl = loaded.evaluator(planes_BP, columns)
    total = np.exp(logits[0][legal_mask(planes_BP)[0]]).sum()
    choice = loaded.choose(board)
    assert choice.move in choice.probabilities.keys() == set(board.legal_moves)
    for move, probability in choice.probabilities.items():
        label = label_from_move(move, board.turn)
        assert probability == pytest.approx(np.exp(logits[0, label]) / total, rel=1e-4)
    assert choice.wdl == pytest.approx(tuple(wdl[0]))
    assert choice.value == pytest.approx(choice.wdl[0] - choice.wdl[2])


def test_low_temperatures_prefer_the_best_move_and_a_seed_makes_choices_repeatable() -> None:
    board = chess.Board()

    def choose_moves(temperature: float) -> list[chess.Move]:
        randoms = map(np.random.default_rng, range(20))
        return [player(TINY).choose(board, temperature, random=it).move for it in randoms]

    best, varied = player(TINY).choose(board, 0.0).move, choose_moves(5.0)
    assert choose_moves(0.01).count(best) > varied.count(best)
    assert len(set(varied)) > 5
    assert choose_moves(5.0) == varied


def test_ratings_and_clock_change_the_policy_and_the_opponents_rating_defaults_to_it() -> None:
    """Training hides both ratings or none, so a network cannot use one alone."""
    choose, board = player(RATED).choose, chess.Board()
    unknown = choose(board, 0.0)
    rated = choose(board, 0.0, rating=2400, opponent_rating=1200)
    timed = choose(board, 0.0, rating=2400, opponent_rating=1200, clock=5)
    assert len({choice.value for choice in (unknown, rated, timed)}) == 3
    ratings = {"elo": np.array([2400]), "opponent_elo": np.array([1200])}
    assert player(RATED).evaluator(planes_of([board]), ratings)[1][0].tolist() == list(rated.wdl)
    equal = choose(board, 0.0, rating=np.int64(2400), simulations=np.int8(0))  # type: ignore[arg-type]
    assert equal == choose(board, 0.0, rating=2400, opponent_rating=2400) != rated


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rating": "1500"}, "rating must be a whole number"),
        ({"rating": True}, "rating must be a whole number"),
        ({"opponent_rating": [1500]}, "opponent_rating must be a whole number"),
        ({"rating": -1}, "rating is -1, but must be from 0 to 65535"),
        ({"simulations": 10**12}, "simulations is 1000000000000"),
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"aim": "luck"}, "aim must be one of likelihood, strength"),
        ({"random": 3}, "random must be a numpy.random.Generator"),
    ],
    ids=str,
)
def test_values_of_a_wrong_type_are_refused_by_name(given: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        player(RATED).choose(chess.Board(), **given)  # type: ignore[arg-type]


CHECKMATE = chess.Board("7k/6Q1/6K1/8/8/8/8/8 b - - 0 1")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: player(RATED).policies("startpos", ["1500"]), UserError, "rating"),  # type: ignore[list-item]
        (lambda: player(RATED).policies("startpos", 1500), UserError, "ratings must be a list"),  # type: ignore[arg-type]
        (lambda: player(RATED).analyse("startpos", 0), UserError, "simulations is 0"),
        (lambda: player(RATED).analyse("startpos", 4, lines="3"), UserError, "lines must be"),  # type: ignore[arg-type]
        (
            lambda: load(EMBEDDED_CHECKPOINT, device="onnx"),
            DeviceError,
            "must be auto, cpu or cuda, not 'on",
        ),
        (lambda: player(TINY).choose(CHECKMATE), GameOverError, "no legal move"),
        (lambda: player(TINY).choose("startpos", rating=1500), ConditionError, "no input 'elo'"),
    ],
)
def test_unsupported_requests_are_refused_by_name(
    call: Callable[[], object], error: type[UserError], words: str
) -> None:
    with pytest.raises(error, match=words):
        call()


GAME = "e4 c5 Nf3 d6 Bb5+ Bd7 O-O Bxb5 Re1 Nf6 c4 Bxc4 Qa4+ b5 e5 bxa4"


def test_matches_uci_and_the_python_api_choose_the_same_moves() -> None:
    """All of them give the network the last moves, castling rights, ratings and clock."""
    conditioned = {"condition": "ratings_clock", "condition_width": 8}
    row = replace(small(presets()["bishop"]), view="planes18+last4", **conditioned)  # type: ignore[arg-type]
    network, board = player(row), chess.Board()
    side = LocalSide(Contestant(name="policy", evaluator=network.evaluator), 2)
    side.games[0] = 0
    with Talk(network.evaluator) as talk:
        talk.say("setoption name Style value policy")
        for san in GAME.split():
            chosen = network.choose(board, 0.0).move
            (played,) = side.play([MoveRequest(0, board, None)])
            position = f"position startpos moves {' '.join(map(str, board.move_stack))}"
            assert played.move == chosen
            assert talk.best(position, "go nodes 1") == chosen.uci()
            board.push_san(san)
        talk.say("setoption name Rating value 1800", "setoption name UCI_ShowWDL value true")
        position = f"position startpos moves {' '.join(map(str, board.move_stack))}"
        info = last_info(talk.ask(position, "go wtime 61900 btime 61900 winc 0"))
    conditions = Conditions(rating=1800, clock=61.9, base=61.9, increment=0)
    columns = read_columns(network.evaluator, [board], [conditions])
    names = ("elo", "opponent_elo", "clock", "base", "increment")
    assert [columns[name].tolist() for name in names] == [[1800], [1800], [61], [61], [0]]
    win, draw, _ = network.evaluator(planes_of([board]), columns)[1][0].tolist()
    shown = [int(word) for word in info["wdl"].split()[:2]]
    assert shown == pytest.approx([1000 * win, 1000 * draw], abs=1)


def test_a_network_conditioned_on_speed_reads_the_time_control() -> None:
    fast, board = player(replace(RATED, condition="ratings_speed")), chess.Board()
    blitz = fast.choose(board, rating=1500, time_control="180+2").probabilities
    given = {"elo": 1500, "opponent_elo": 1500, "base": 180, "increment": 2}
    columns = {name: np.array([number]) for name, number in given.items()}
    logits = fast.evaluator(planes_of([board]), columns)[0][0]
    labels = [label_from_move(move, chess.WHITE) for move in blitz]
    assert np.diff(np.log(list(blitz.values()))) == pytest.approx(np.diff(logits[labels]), abs=1e-3)
    for other in (None, "bullet", "1800+0"):
        assert fast.choose(board, rating=1500, time_control=other).probabilities != blitz
    moves, policies = fast.policies(board, [1500], time_control="180+2")
    assert policies[0].tolist() == pytest.approx([blitz[move] for move in moves], abs=1e-6)
    for invalid in ("3 minutes", "180", 180, ""):
        with pytest.raises(UserError, match="is not a time control: give seconds"):
            fast.choose(board, time_control=invalid)  # type: ignore[arg-type]
    with pytest.raises(ConditionError, match="has no input 'base'"):
        player(TINY).choose(board, time_control="blitz")
    limit = Limit(base=300, increment=3)
    side = LocalSide(Contestant(name="fast", evaluator=fast.evaluator, limit=limit), 1)
    side.games[0] = 0
    conditions = side._convert_request(MoveRequest(0, board, (299.0, 290.0))).conditions
    assert conditions.columns() == {"clock": 299, "base": 300, "increment": 3}


KING_IN_CHECK = "4k3/4R3/8/8/8/8/8/4K3 w - - 0 1"


@pytest.mark.parametrize(
    ("board", "words"),
    [
        (None, "board must be a chess.Board, a FEN or 'startpos', not NoneType"),
        ("8/8", "not a FEN"),
        (KING_IN_CHECK, "not a playable position"),
        (chess.Board(KING_IN_CHECK), "not a playable position"),
        ("nrbqkr1n/pppppppp/8/8/8/8/PPPPPPPP/NRBQKR1N w FBfb - 0 1", "Chess960"),
        (chess.variant.AtomicBoard(), "of standard chess, not .*AtomicBoard"),
    ],
    ids=str,
)
def test_boards_that_uci_refuses_are_refused(board: chess.Board, words: str) -> None:
    one = player(TINY)
    for call in (
        one.choose,
        partial(one.policies, ratings=[]),
        partial(one.analyse, simulations=4),
    ):
        with pytest.raises(UserError, match=words):
            call(board)


def test_an_en_passant_square_without_a_capture_changes_nothing() -> None:
    """Black has no pawn on d5, so e5d6 is no legal move."""
    fen = "rnbqkbnr/ppp1pppp/8/4P3/8/8/PPPP1PPP/RNBQKBNR w KQkq {} 0 3"
    choose = player(TINY).choose
    expected = choose(fen.format("-"), 0.0).probabilities
    for board in (fen.format("d6"), chess.Board(fen.format("d6"))):
        assert choose(board, 0.0).probabilities == expected


def test_an_evaluator_reads_the_given_columns_and_infers_missing_ones() -> None:
    rows = playout_rows(1)
    evaluate = NetworkEvaluator(build(small(presets()["bishop"]), 0), device="cpu", amp="off")
    inferred, _ = evaluate(rows["planes"])
    given, _ = evaluate(rows["planes"], rows)
    assert np.array_equal(inferred, given), "castling rights can be inferred in the first position"
    without_castling, _ = evaluate(rows["planes"], rows | {"castling": np.zeros(1, np.uint8)})
    assert not np.allclose(inferred, without_castling)


def test_the_last_moves_come_from_the_boards_move_stack() -> None:
    row, board = replace(TINY, name="last", view="marro77+last4"), chess.Board()
    for san in ("e4", "e5", "Bc4", "a6", "Bxf7"):
        board.push_san(san)
    # latest first, in Black's view: rank 1 is on top, so c4 is bit 8 * 3 + 2 and f7 bit 8 * 6 + 5
    moves = (26 * 64 + 53, 48 * 64 + 40, 5 * 64 + 26, 52 * 64 + 36)
    names = ("last_move", "last_move_2", "last_move_3", "last_move_4")
    assert columns_of(row, board) == {name: [it] for name, it in zip(names, moves, strict=True)}
    without_moves = chess.Board(board.fen())
    assert columns_of(row, without_moves)["last_move"] == [65535]
    one, other = (player(row).choose(it, 0.0).probabilities for it in (board, without_moves))
    assert one != other
    board.push(chess.Move.null())
    assert columns_of(row, board)["last_move"] == [65535]


MATE_IN_TWO = "r2qkb1r/pp2nppp/3p4/2pNN1B1/2BnP3/3P4/PPP2PPP/R2bK2R w KQkq - 1 1"  # Nf6+ gxf6 Bxf7#


def test_a_search_corrects_the_policy_by_the_weight_of_the_rating() -> None:
    board = chess.Board(MATE_IN_TWO)
    one = Player(NetworkEvaluator(player(RATED).evaluator.network, device="cpu", amp="off"))
    one.evaluator.corrections = {"likelihood": Correction([1000, 2000], [0.0, 200.0], [1.0, 1.0])}
    policy = one.choose(board, 0.0, rating=2000)
    searched = one.choose(board, 0.0, rating=2000, simulations=400)
    assert (policy.simulations, searched.simulations) == (0, 400)
    assert board.san(searched.move) == "Nf6+"
    assert searched.probabilities[searched.move] > 0.9 > policy.probabilities[searched.move]
    assert (searched.value, searched.wdl) == (policy.value, policy.wdl)
    weak, plain = (one.choose(board, 0.0, rating=900, simulations=n) for n in (400, 0))
    assert weak.probabilities == pytest.approx(plain.probabilities), "its weight is 0"
    for choice in (  # without a correction, the policy is played
        player(RATED).choose(board, 0.0, rating=2000, simulations=64),
        one.choose(board, 0.0, rating=2000, simulations=64, aim="strength"),
    ):
        assert (choice.simulations, choice.probabilities) == (0, policy.probabilities)


def test_policies_of_several_ratings_equal_those_of_each_rating() -> None:
    board, one = chess.Board(MATE_IN_TWO), player(RATED)
    moves, policies = one.policies(board, [800, 1500, 2400])
    assert policies.shape == (3, len(moves))
    assert policies.sum(axis=1) == pytest.approx(1)
    for rating, policy in zip((800, 1500, 2400), policies, strict=True):
        alone = one.choose(board, rating=rating, opponent_rating=rating).probabilities
        assert dict(zip(moves, policy, strict=True)) == pytest.approx(alone, abs=1e-5)
    assert one.policies(board, [])[1].shape == (0, len(moves))


def test_an_analysis_lists_all_moves_and_playable_lines() -> None:
    board = chess.Board(MATE_IN_TWO)
    analysis = player(RATED).analyse(board, 800, lines=2)
    assert {line.move for line in analysis.moves} == set(board.legal_moves)
    best = analysis.moves[0]
    assert [board.san(best.move), best.mate, best.value] == ["Nf6+", 3, 1.0]
    assert (analysis.value, analysis.wdl) == (1.0, (1.0, 0.0, 0.0))
    assert [bool(line.variation) for line in analysis.moves[:3]] == [True, True, False]
    for move in best.variation:
        assert board.is_legal(move)
        board.push(move)
    assert board.is_checkmate()
