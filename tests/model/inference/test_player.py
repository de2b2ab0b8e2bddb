"""A checkpoint as a player on boards, and networks that read more than planes."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import chess
import chess.variant
import numpy as np
import pytest

from engine.encoding.planes import label_of, legal_mask, planes_of
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
from pipeline.samples.shipped import EMBEDDED
from tests.engine.uci.uci_talk import Talk, last_info
from tests.model.network.test_presets import DISTINCT, small
from tests.model.synthetic import TINY
from tests.model.test_checkpoint import make
from tests.waiting import LONG

RATED = replace(TINY, name="rated", condition="ratings_clock", condition_width=8)


@cache
def player(row: Preset) -> Player:
    return Player(NetworkEvaluator(build(row, seed=4), device="cpu", amp="off"))


def columns_of(row: Preset, board: chess.Board) -> dict[str, list[int]]:
    columns = read_columns(player(row).evaluator, [board], [Conditions()])
    return {name: column.tolist() for name, column in columns.items()}


def test_importing_model_imports_no_torch_and_loading_a_checkpoint_no_compiler(
    tmp_path: Path,
) -> None:
    """Threads of torch sleep while they wait, which is set before torch is imported."""
    make(tmp_path, row=replace(TINY, move_features_width=8))
    code = (
        "import os, sys, model; assert 'torch' not in sys.modules; model.load(sys.argv[1]); "
        "assert 'torch' in sys.modules; assert os.environ['GOMP_SPINCOUNT'] == '1000'; "
        "assert os.environ['LRU_CACHE_CAPACITY'] == '128'; "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    kept = {name: it for name, it in os.environ.items() if not name.startswith(("GOMP", "OMP_W"))}
    words = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(words, env=kept, check=False, timeout=LONG).returncode == 0


@pytest.mark.parametrize("row", DISTINCT, ids=DISTINCT.get)
def test_every_system_chooses_a_legal_move_for_both_sides(row: Preset) -> None:
    for turn in "wb":
        board = chess.Board(f"r3k2r/1P4P1/8/8/8/8/1p4p1/R3K2R {turn} KQkq - 0 1")
        choice = player(row).choose(board, 0.0)
        assert choice.move in board.legal_moves
        assert choice.move == next(iter(choice.probabilities))
        assert choice.move.promotion in (None, chess.QUEEN)


def test_probabilities_are_the_evaluators_by_label(tmp_path: Path) -> None:
    board = chess.Board("r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R b KQkq - 0 1")
    make(tmp_path, small(presets()["bishop"]))
    one = load(str(tmp_path), device="cpu", amp="off")
    columns, planes_BP = read_columns(one.evaluator, [board], [Conditions()]), planes_of([board])
    logits, wdl = one.evaluator(planes_BP, columns)
    legal = legal_mask(planes_BP)[0]
    total = np.exp(logits[0][legal]).sum()
    choice = one.choose(board)
    assert choice.move in choice.probabilities.keys() == set(board.legal_moves)
    for move, share in choice.probabilities.items():
        label = label_of(move, board.turn)
        assert share == pytest.approx(np.exp(logits[0, label]) / total, rel=1e-4)
    assert choice.wdl == pytest.approx(tuple(wdl[0]))
    assert choice.value == pytest.approx(choice.wdl[0] - choice.wdl[2])


def test_temperature_sharpens_and_a_seed_decides() -> None:
    one, board = player(TINY), chess.Board()

    def draw(temperature: float) -> list[chess.Move]:
        seeds = map(np.random.default_rng, range(20))
        return [one.choose(board, temperature, random=seed).move for seed in seeds]

    best, hot = one.choose(board, 0.0).move, draw(5.0)
    assert draw(0.01).count(best) > hot.count(best)
    assert len(set(hot)) > 5
    assert draw(5.0) == hot


def test_ratings_and_clock_change_the_policy_and_the_opponents_rating_defaults_to_it() -> None:
    """Training hides both ratings or none, so a network never learned one alone."""
    one, board = player(RATED), chess.Board()
    unknown = one.choose(board, 0.0)
    rated = one.choose(board, 0.0, rating=2400, opponent_rating=1200)
    timed = one.choose(board, 0.0, rating=2400, opponent_rating=1200, clock=5)
    assert len({choice.value for choice in (unknown, rated, timed)}) == 3
    given = {"elo": np.array([2400]), "opponent_elo": np.array([1200])}
    assert one.evaluator(planes_of([board]), given)[1][0].tolist() == list(rated.wdl)
    alone = one.choose(board, 0.0, rating=np.int64(2400), simulations=np.int8(0))  # type: ignore[arg-type]
    assert alone == one.choose(board, 0.0, rating=2400, opponent_rating=2400) != rated


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


def test_unsupported_requests_are_refused_by_name() -> None:
    one, mated = player(RATED), chess.Board("7k/6Q1/6K1/8/8/8/8/8 b - - 0 1")
    for ratings in (["1500"], 1500):
        with pytest.raises(UserError, match="rating"):
            one.policies("startpos", ratings)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="simulations is 0"):
        one.analyse("startpos", 0)
    with pytest.raises(UserError, match="lines must be a whole number"):
        one.analyse("startpos", 4, lines="3")  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="device must be auto, cpu or cuda, not 'onnx'"):
        load(EMBEDDED, device="onnx")
    with pytest.raises(
        ConditionError, match="tiny has no input 'elo': its inputs are the planes only"
    ):
        player(TINY).choose(chess.Board(), rating=1500)
    with pytest.raises(GameOverError, match="no legal move"):
        player(TINY).choose(mated)


GAME = "e4 c5 Nf3 d6 Bb5+ Bd7 O-O Bxb5 Re1 Nf6 c4 Bxc4 Qa4+ b5 e5 bxa4"


def test_matches_uci_and_the_python_api_choose_the_same_moves() -> None:
    """All give the network the last moves, rights and clock: one place knows the columns."""
    row = replace(
        small(presets()["bishop"]),
        view="planes18+last4",
        condition="ratings_clock",
        condition_width=8,
    )
    network, board = player(row), chess.Board()
    side = LocalSide(Contestant(name="policy", evaluator=network.evaluator), 2)
    side.games[0] = 0
    with Talk(network.evaluator) as talk:
        talk.say("setoption name Style value policy")
        for san in GAME.split():
            chosen = network.choose(board, 0.0).move
            (played,) = side.play([MoveRequest(0, board, None)])
            words = " ".join(move.uci() for move in board.move_stack)
            assert played.move == chosen
            assert talk.best(f"position startpos moves {words}", "go nodes 1") == chosen.uci()
            board.push_san(san)
        talk.say("setoption name Rating value 1800", "setoption name UCI_ShowWDL value true")
        words = " ".join(move.uci() for move in board.move_stack)
        shown_info = last_info(
            talk.ask(f"position startpos moves {words}", "go wtime 61900 btime 61900 winc 0")
        )
    rated = dict.fromkeys(("elo", "opponent_elo"), 1800)
    rated |= {"clock": 61, "base": 61, "increment": 0}
    given = Conditions(rating=1800, clock=61.9, base=61.9, increment=0)
    columns = read_columns(network.evaluator, [board], [given])
    assert {name: columns[name].tolist() for name in rated} == {
        name: [one] for name, one in rated.items()
    }
    win, draw, _ = network.evaluator(planes_of([board]), columns)[1][0].tolist()
    assert [int(word) for word in shown_info["wdl"].split()[:2]] == pytest.approx(
        [1000 * win, 1000 * draw], abs=1
    )


def test_a_network_conditioned_on_speed_reads_the_time_control() -> None:
    one, board = player(replace(RATED, condition="ratings_speed")), chess.Board()
    blitz = one.choose(board, rating=1500, time_control="180+2").probabilities
    given = {"elo": 1500, "opponent_elo": 1500, "base": 180, "increment": 2}
    columns = {name: np.array([number]) for name, number in given.items()}
    logits = one.evaluator(planes_of([board]), columns)[0][0]
    labels = [label_of(move, chess.WHITE) for move in blitz]
    assert np.diff(np.log(list(blitz.values()))) == pytest.approx(np.diff(logits[labels]), abs=1e-3)
    for other in (None, "bullet", "1800+0"):
        assert one.choose(board, rating=1500, time_control=other).probabilities != blitz
    moves, shares = one.policies(board, [1500], time_control="180+2")
    assert shares[0].tolist() == pytest.approx([blitz[move] for move in moves], abs=1e-6)
    for wrong in ("3 minutes", "180", 180, ""):
        with pytest.raises(UserError, match="is not a time control: give seconds"):
            one.choose(board, time_control=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConditionError, match="has no input 'base'"):
        player(TINY).choose(board, time_control="blitz")
    limit = Limit(base=300, increment=3)
    side = LocalSide(Contestant(name="one", evaluator=one.evaluator, limit=limit), 1)
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
    for ask in (
        one.choose,
        lambda board: one.policies(board, []),
        lambda board: one.analyse(board, 4),
    ):
        with pytest.raises(UserError, match=words):
            ask(board)


def test_an_en_passant_square_without_a_capture_changes_nothing() -> None:
    """No pawn has just gone from d7 to d5, so e5d6 is no move."""
    fen = "rnbqkbnr/ppp1pppp/8/4P3/8/8/PPPP1PPP/RNBQKBNR w KQkq {} 0 3"
    one = player(TINY)
    wanted = one.choose(fen.format("-"), 0.0).probabilities
    for board in (fen.format("d6"), chess.Board(fen.format("d6"))):
        assert one.choose(board, 0.0).probabilities == wanted


def test_columns_of_a_batch_are_read_and_missing_ones_inferred() -> None:
    """Castling rights are only in the columns, and a network of planes18 must read them."""
    rows = playout_rows(1)
    network = NetworkEvaluator(build(small(presets()["bishop"]), 0), device="cpu", amp="off")
    inferred, _ = network(rows["planes"])
    given, _ = network(rows["planes"], rows)
    assert np.array_equal(inferred, given), "at the start of a game, the planes say it all"
    none, _ = network(rows["planes"], rows | {"castling": np.zeros(1, np.uint8)})
    assert not np.allclose(inferred, none)


def test_the_last_moves_come_from_the_boards_own_moves() -> None:
    four, board = replace(TINY, name="last", view="marro77+last4"), chess.Board()
    # for Black, who has rank 1 on top, c4 is bit 8 * 3 + 2, f7 8 * 6 + 5
    for san in ("e4", "e5", "Bc4", "a6", "Bxf7"):
        board.push_san(san)
    # Black's own moves are seen from his side too
    moves = (26 * 64 + 53, 48 * 64 + 40, 5 * 64 + 26, 52 * 64 + 36)
    names = ("last_move", "last_move_2", "last_move_3", "last_move_4")
    assert columns_of(four, board) == {name: [at] for name, at in zip(names, moves, strict=True)}
    fresh = chess.Board(board.fen())
    assert columns_of(four, fresh)["last_move"] == [65535]
    same, other = (player(four).choose(it, 0.0) for it in (board, fresh))
    assert same.probabilities != other.probabilities
    board.push(chess.Move.null())
    assert columns_of(four, board)["last_move"] == [65535]


MATE_IN_TWO = "r2qkb1r/pp2nppp/3p4/2pNN1B1/2BnP3/3P4/PPP2PPP/R2bK2R w KQkq - 1 1"  # Nf6+ gxf6 Bxf7#


def corrected(weight: float, sharpness: float = 1.0) -> Player:
    one = Player(NetworkEvaluator(player(RATED).evaluator.network, device="cpu", amp="off"))
    one.evaluator.corrections = {
        "likelihood": Correction([1000, 2000], [0.0, weight], [1.0, sharpness])
    }
    return one


def test_a_search_corrects_the_policy_by_the_weight_of_the_rating() -> None:
    board, one = chess.Board(MATE_IN_TWO), corrected(200.0)
    bare = one.choose(board, 0.0, rating=2000)
    searched = one.choose(board, 0.0, rating=2000, simulations=400)
    assert (bare.simulations, searched.simulations) == (0, 400)
    assert board.san(searched.move) == "Nf6+"
    assert searched.probabilities[searched.move] > 0.9 > bare.probabilities[searched.move]
    assert (searched.value, searched.wdl) == (bare.value, bare.wdl)
    weak, plain = (one.choose(board, 0.0, rating=900, simulations=n) for n in (400, 0))
    assert weak.probabilities == pytest.approx(plain.probabilities), "its weight is 0"
    for choice in (  # without a correction the policy is played
        player(RATED).choose(board, 0.0, rating=2000, simulations=64),
        one.choose(board, 0.0, rating=2000, simulations=64, aim="strength"),
    ):
        assert (choice.simulations, choice.probabilities) == (0, bare.probabilities)


def test_policies_of_several_ratings_equal_those_of_each_rating() -> None:
    board, one = chess.Board(MATE_IN_TWO), player(RATED)
    moves, shares = one.policies(board, [800, 1500, 2400])
    assert shares.shape == (3, len(moves))
    assert shares.sum(axis=1) == pytest.approx(1)
    for rating, row in zip((800, 1500, 2400), shares, strict=True):
        alone = one.choose(board, rating=rating, opponent_rating=rating).probabilities
        assert dict(zip(moves, row, strict=True)) == pytest.approx(alone, abs=1e-5)
    assert one.policies(board, [])[1].shape == (0, len(moves))


def test_an_analysis_lists_all_moves_and_playable_lines() -> None:
    board = chess.Board(MATE_IN_TWO)
    found = player(RATED).analyse(board, 800, lines=2)
    assert {one.move for one in found.moves} == set(board.legal_moves)
    best = found.moves[0]
    assert [board.san(best.move), best.mate, best.value] == ["Nf6+", 3, 1.0]
    assert found.value == 1.0
    assert found.wdl == (1.0, 0.0, 0.0)
    line = board.copy()
    for move in best.variation:
        assert line.is_legal(move)
        line.push(move)
    assert line.is_checkmate()
    assert [bool(one.variation) for one in found.moves[:3]] == [True, True, False]
