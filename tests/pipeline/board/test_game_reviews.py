"""Reviews of many games of one player, and the kinds of mistakes."""

import json
import pickle
from collections.abc import Generator
from itertools import islice
from pathlib import Path
from typing import Any

import chess
import pytest

from engine.board.position import PAWN, from_board
from engine.evaluation.static_evaluation import passed_pawns
from engine.player import Line, Play
from engine.progress import never
from pipeline.board import game_reviews
from pipeline.board.game import GameError
from pipeline.board.game_reviews import GamesRequest, review_games
from pipeline.board.mistakes import (
    KINDS,
    Mistake,
    advances_passed_pawn,
    find_kind,
    measure_line,
    opens_king,
)
from pipeline.cli.main import parse
from pipeline.executors.local import LocalEngine, Result
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from tests.engine.encoding.test_planes_oracle import games_of
from tests.engine.evaluation.test_handwritten import EXCHANGE_VALUES
from tests.engine.evaluation.test_move_features import compute_slowly
from tests.pipeline.board.games import HANGS, MATED, SHORT, game


def review(pgn: str, name: str = "") -> tuple[dict, list[dict], dict]:
    """Return the header, the steps and the last summary."""
    header, *steps = review_games(GamesRequest(pgn=pgn, name=name), EMBEDDED_CHECKPOINT)
    return header["header"], steps, steps[-1]["summary"]


def test_mistakes_have_kinds_phases_and_examples_that_open() -> None:
    header, steps, summary = review(game(HANGS, "me", "you", "0-1") + game(MATED, "a", "Me", "1-0"))
    assert header["player"] in ("me", "Me")
    assert [step["done"] for step in steps] == [1, 2]
    found = {one["kind"]: one for one in summary["mistakes"]}
    assert {"put a piece en prise", "allowed a mate"} <= set(found)
    for one in summary["mistakes"]:
        assert one["phase"] == "opening"
        for row in one["examples"]:
            kept = header["games"][row["game"]]
            board = chess.Board(kept["start"])
            for uci in kept["moves"][: row["ply"] - 1]:
                board.push_uci(uci)
            assert kept["moves"][row["ply"] - 1] == row["uci"] != row["best_uci"]
            assert chess.Move.from_uci(row["best_uci"]) in board.legal_moves
    names = [row["text"].split(" lost")[0] for row in found["put a piece en prise"]["examples"]]
    assert "8. Bh6" in names
    assert found["allowed a mate"]["examples"][0]["text"].startswith("3... Nf6")


def test_openings_and_time_trouble_are_counted() -> None:
    lost, won = (game(MATED, *names, "1-0") for names in (("a", "me"), ("me", "a")))
    _, _, summary = review(lost * 2 + won * 5, "ME")
    (row,) = summary["openings"]
    assert (row["opening"], row["side"], row["games"]) == ("Open Game", "white", 5)
    assert (row["score"], row["expected"], row["difference"]) == pytest.approx((1.0, 0.5, 0.5))
    # 95 % of means of five results of 0 or 1 are within 1.96 * 0.5 / sqrt(5) of 0.5
    assert row["error"] == pytest.approx(0.438, abs=1e-3)
    assert not row["within_chance"]
    assert summary["about_openings"].startswith("1 of 1 openings with at least 5 games")
    time = summary["time"]
    # the first move of each side has no clock before it; nobody was below 6 of 60 seconds
    assert (time["short"]["moves"], time["other"]["moves"]) == (0, 2 * 2 + 5 * 3)
    short = MATED.replace("0:00:09", "0:00:04").replace("0:00:30", f"{'9' * 400}:00:00")
    _, _, summary = review(game(short, "a", "me", "1-0"), "me")
    assert summary["time"]["short"] == {"moves": 1, "mistakes": 1, "share": 1.0}


class LastFirst(LocalEngine):
    """Returns the results in reverse, as other processes might."""

    def map(self, function: Any, items: Any, cancelled: Any = never) -> Generator[Result]:
        function, items = pickle.loads(pickle.dumps((function, items)))
        yield from reversed([*LocalEngine(1).map(function, items, cancelled)])


def test_the_order_in_which_games_are_done_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    games = game(HANGS, "me", "you", "0-1") + game(MATED, "you", "me", "1-0")
    request = GamesRequest(pgn=games, name="me")
    before = [*review_games(request, EMBEDDED_CHECKPOINT)]
    monkeypatch.setattr(game_reviews, "LocalEngine", LastFirst)
    assert [*review_games(request, EMBEDDED_CHECKPOINT)] == before


def test_evaluations_of_the_games_are_kept_and_bad_games_are_counted() -> None:
    bad = '[Event "x"]\n[Variant "Atomic"]\n\n1. e4 e5\n\n[Event "x"]\n\n1. e4 Ke5 *\n\n'
    bad += '[Event "x"]\n[FEN "QQQQQQQk/QQQQ4/8/8/8/8/8/K7 w - - 0 1"]\n\n1. Kb1 *\n\n'
    header, _, summary = review(bad + SHORT, "A <img src=x onerror=alert(1)>")
    assert "standard chess" in header["notes"]
    assert "cannot be read" in header["notes"]
    assert "cannot be played (1)" in header["notes"]
    assert not summary["mistakes"]  # White lost nothing by the game's evaluations
    with pytest.raises(GameError, match="none of these 1 games"):
        review(SHORT, "nobody")


def test_the_command_reviews_the_games_of_a_player(tmp_path: Path) -> None:
    (tmp_path / "games.pgn").write_text(game(HANGS, "me", "you", "0-1"))
    found = parse(["review", str(tmp_path / "games.pgn"), "--player", "me", "--json"]).run()
    assert json.loads(json.dumps(found))["mistakes"]
    assert "8. Bh6" in found["text"]


def play_line(board: chess.Board, line: str, mate: int) -> Play:
    """Return a search's result: a line in SAN, and the half-moves to a proven mate."""
    after, moves = board.copy(), []
    for san in line.split():
        moves.append(after.push_san(san))
    found = Line(moves[0], value=0.0, draw=0.0, mate=mate, variation=tuple(moves))
    return Play((found,), value=0.0, wdl=(0.5, 0.0, 0.5))


def make_mistake(
    fen: str, move: str, best: str, answer: str = "", *, before: str = "", mates: tuple = (0, 0)
) -> Mistake:
    """Return the mistake `move`, where `best` and `answer` are lines; `before` is played first."""
    board = chess.Board(fen)
    if before:
        board.push_san(before)
    after = board.copy()
    played = after.push_san(move)
    reply = play_line(after, answer, mates[1]) if answer else None
    return Mistake(board, played, 0.6, 0.4, play_line(board, best, mates[0]), reply)


CASTLED = "r1bq1rk1/pppn1ppp/8/8/8/8/PPPN1PPP/R1BQ1RK1 w - - 0 1"
MISTAKES = {
    "missed a mate": make_mistake("6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1", "Kd2", "Ra8#", mates=(1, 0)),
    "allowed a mate": make_mistake(
        "r3k3/8/8/8/8/7P/5PP1/4N1K1 w - - 0 1", "Nc2", "Kh2", "Ra1+ Nxa1", mates=(0, 3)
    ),
    "captured at a loss": make_mistake("4k3/8/3p4/4p3/8/5N2/8/4K3 w - - 0 1", "Nxe5", "Kd2"),
    "put a piece en prise": make_mistake("4k3/8/3p4/4p3/8/5N2/8/4K3 w - - 0 1", "Nd4", "Kd2"),
    "left a piece hanging": make_mistake("4k3/8/3p4/8/4p3/5N2/8/4K3 w - - 0 1", "Kd2", "Nd4"),
    "did not recapture": make_mistake(
        "4k3/8/8/3p4/4N3/5P2/8/4K3 b - - 0 1", "Kd2", "fxe4", before="dxe4"
    ),
    "missed a capture": make_mistake("4k3/8/8/3r4/8/2N5/8/4K3 w - - 0 1", "Ke2", "Nxd5"),
    "allowed a fork": make_mistake(
        "4k3/8/8/8/1n6/8/8/R3K2R w - - 0 1", "Rg1", "Kd2", "Nc2+ Kd2 Nxa1"
    ),
    "missed a fork": make_mistake("r3k3/8/8/1N6/8/8/8/4K3 w - - 0 1", "Kd2", "Nc7+ Kd7 Nxa8"),
    # a bishop checks the king, and takes the queen behind it
    "allowed a tactic": make_mistake(
        "4kb2/8/8/8/8/8/3K4/6Q1 w - - 0 1", "Ke3", "Qe1+", "Bc5+ Kf3 Bxg1"
    ),
    "missed a tactic": make_mistake("6q1/8/4k3/8/8/8/8/4KB2 w - - 0 1", "Kd2", "Bc4+ Kd6 Bxg8"),
    "let a passed pawn advance": make_mistake("4k3/8/8/8/8/p7/8/4K3 w - - 0 1", "Kf2", "Kd1", "a2"),
    "did not advance a passed pawn": make_mistake("4k3/8/8/8/8/P7/8/4K3 w - - 0 1", "Kd2", "a4"),
    "opened the king": make_mistake(CASTLED, "g4", "Nf3"),
    "should have moved the king": make_mistake("4k3/8/8/8/8/P7/8/4K2N w - - 0 1", "Ng3", "Kd2"),
    "lost a pawn": make_mistake("4k3/8/8/8/r3P3/8/8/1N2K3 w - - 0 1", "Ke2", "Nd2"),
    "missed a pawn": make_mistake("4k3/8/8/3p4/8/2N5/8/4K3 w - - 0 1", "Kd2", "Nxd5"),
    "traded when it should not": make_mistake("4k3/8/4p3/3n4/8/2N5/8/4K3 w - - 0 1", "Nxd5", "Ne4"),
    "missed a check": make_mistake("4k3/8/8/1N6/8/8/P7/4K3 w - - 0 1", "Kd2", "Nc7+"),
    "missed an attack": make_mistake("r6k/7p/8/8/8/8/8/4KB2 w - - 0 1", "Kd2", "Bg2"),
    "other": make_mistake(chess.STARTING_FEN, "a3", "e4"),
}


def test_each_kind_has_an_example() -> None:
    assert {kind: find_kind(mistake) for kind, mistake in MISTAKES.items()} == {
        kind: kind for kind in KINDS
    }


def test_material_and_pawns_are_counted_as_python_chess_and_the_engine_do() -> None:
    """On the moves of real games; `compute_slowly` is python-chess with slow exchanges."""
    met = {"passed": 0, "opens": 0, "lines": 0}
    for game_of in islice(games_of("pgn/lichess_export_2016-05.pgn", 12), 3):
        moves = list(game_of.mainline_moves())
        board = game_of.board()
        for ply, move in enumerate(moves):
            words = from_board(board)
            passed = int(passed_pawns(words[PAWN], words[PAWN + 1]))
            square = move.from_square ^ (56 if board.turn else 0)
            assert advances_passed_pawn(board, move) == bool(passed >> square & 1)
            met["passed"] += passed >> square & 1
            mirrored = chess.Move(move.from_square ^ 56, move.to_square ^ 56, move.promotion)
            opens = opens_king(board, move)
            assert opens == opens_king(board.mirror(), mirrored)
            met["opens"] += opens
            line = moves[ply : ply + 3]
            if ply % 5 == 0:
                gain = gain_by_hand(board, line)
                assert measure_line(board, line) == gain
                met["lines"] += gain != 0
            board.push(move)
    assert min(met.values()) > 3, met


def gain_by_hand(board: chess.Board, line: list[chess.Move]) -> int:
    """Return what `measure_line` does, by python-chess."""

    def balance(one: chess.Board) -> int:
        pieces = one.piece_map().values()
        return sum(
            EXCHANGE_VALUES[p.piece_type] * (1 if p.color == board.turn else -1) for p in pieces
        )

    end = board.copy()
    for move in line:
        end.push(move)
    features = [
        compute_slowly(end, move)
        for move in end.legal_moves
        if move.promotion in (None, chess.QUEEN)
    ]
    best = max((found["takes"] - found["risks"] for found in features), default=0)
    sign = 1 if end.turn == board.turn else -1
    return (balance(end) - balance(board)) // 10 + sign * max(best, 0)
