"""Players at a rating in matches: moves are drawn by human search, and a game depends on its number
alone."""

from collections.abc import Mapping
from typing import ClassVar

import chess
import numpy as np
import pytest
from numpy.typing import NDArray

from engine.evaluation.evaluator import uniform
from engine.evaluation.handwritten import evaluate
from engine.match.arena import play
from engine.match.config import PlayerError
from engine.match.game import GameRecord
from engine.match.openings import generate
from engine.match.players import Contestant, MoveRequest, OwnSide
from engine.search.human import Correction, human_config
from pipeline.matches.config import SideConfig
from pipeline.matches.players import player_of
from tests.conftest import REPOSITORY

EMBEDDED = REPOSITORY / "datasets" / "embedded"


class Rated:
    """Likes all moves alike, and keeps the columns of each call."""

    columns: ClassVar = {"elo": 0, "opponent_elo": 0}

    def __init__(self) -> None:
        self.given: list[dict[str, list[int]]] = []

    def __call__(
        self,
        planes_BP: NDArray[np.uint64],
        columns: Mapping[str, NDArray[np.integer]] | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        self.given.append({name: column.tolist() for name, column in (columns or {}).items()})
        return uniform(planes_BP)[0], evaluate(planes_BP)[1]


def rated(weight: float, seed: int = 0) -> Contestant:
    found = Correction([1000], [weight], [1.0], 12)
    return Contestant(
        name=f"rated {weight}",
        evaluator=Rated(),
        rating=1700,
        correction=found,
        search=human_config(12),
        seed=seed,
    )


def moves_of(
    weight: float, seed: int, boards: list[chess.Board], games: list[int]
) -> list[chess.Move]:
    contestant = rated(weight, seed)
    evaluator = contestant.evaluator
    assert isinstance(evaluator, Rated)
    side = OwnSide(contestant, len(boards))
    for slot, (board, game) in enumerate(zip(boards, games, strict=True)):
        side.new_game(slot, board, game)
    played = side.play([MoveRequest(slot, board, None) for slot, board in enumerate(boards)])
    assert evaluator.given[0] == dict.fromkeys(
        ("elo", "opponent_elo"), [1700] * max(2, len(boards))
    )
    assert not any(evaluator.given[1:]), "the search knows no ratings"
    return [one.move for one in played if one.move is not None]


def test_draws_depend_on_seed_and_game_and_not_on_neighbours() -> None:
    boards = [chess.Board() for _ in range(6)]
    moves = moves_of(0.0, 1, boards, [0, 1, 2, 3, 4, 5])
    assert len(set(moves)) > 2
    assert [moves_of(0.0, 1, [board], [game])[0] for game, board in enumerate(boards)] == moves
    assert moves_of(0.0, 2, boards, [0, 1, 2, 3, 4, 5]) != moves


def test_a_large_weight_plays_what_the_search_likes() -> None:
    queen = [chess.Board("4k3/8/8/3q4/4P3/8/8/4K3 w - - 0 1") for _ in range(6)]
    assert {move.uci() for move in moves_of(300.0, 1, queen, list(range(6)))} == {"e4d5"}
    assert len(set(moves_of(0.0, 1, queen, list(range(6))))) > 2


def test_a_match_of_two_ratings_is_won_by_the_one_that_searches() -> None:
    records: list[GameRecord] = []
    openings = generate(6, evaluate, seed=1, plies=4)
    play((rated(60.0, 1), rated(0.0, 2)), openings, report=records.append, max_plies=160)
    points = sum(record.points for record in records)
    assert len(records) == 12
    assert points >= 9


def test_words_make_a_player_at_a_rating() -> None:
    side = SideConfig(who=f"onnx:{EMBEDDED}", options=("rating=1800",), simulations=32)
    player, identity = player_of(side, seed=1)
    assert (player.rating, player.name) == (1800, "embedded onnx rated 1800 likelihood")
    assert player.search is not None
    assert player.search.simulations == 32
    strong, other = player_of(
        SideConfig(who=f"onnx:{EMBEDDED}", options=("rating=1800", "aim=strength")), seed=1
    )
    assert strong.correction != player.correction
    assert identity != other
    for options, problem in (
        (("rating=0",), "rating must be 1 to"),
        (("rating=x",), "rating must be 1 to"),
        (("rating=1500", "aim=luck"), "aim likelihood or strength"),
        (("rating=1500", "c_puct=2"), "and no others"),
    ):
        with pytest.raises(PlayerError, match=problem):
            player_of(SideConfig(who=f"onnx:{EMBEDDED}", options=options), seed=1)
    with pytest.raises(PlayerError, match="and no others"):
        player_of(SideConfig(who=f"onnx:{EMBEDDED}", options=("rating=1500",), movetime=10), seed=1)
    with pytest.raises(PlayerError, match="only checkpoints fitted by `fianchetto calibrate`"):
        player_of(SideConfig(who="hand-written", options=("rating=1500",)), seed=1)
