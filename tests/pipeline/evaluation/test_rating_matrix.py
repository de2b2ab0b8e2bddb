"""The rating matrix compared with likelihoods in closed form, and the choice of its positions."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from engine.encoding.planes import LABELS, label_from_move
from engine.progress import silent
from model.data.playouts import playout_rows
from pipeline.evaluation.charts import decode_board
from pipeline.evaluation.rating_matrix import (
    BAND_CENTERS,
    choose_by_band,
    describe_matrix,
    measure_matrix,
)

BAND_ROWS = 20
"""Number of positions of each band."""

Played = tuple[dict[str, Any], list[list[int]]]
"""Rows of a dataset, and the labels of each row's legal moves."""


def legal_labels(batch: Any) -> list[list[int]]:
    """Return the labels of each row's moves, ascending, by python-chess."""
    columns = (batch[name].tolist() for name in ("castling", "ep_file", "ply"))
    boards = (decode_board(*row) for row in zip(batch["planes"], *columns, strict=True))
    return [
        sorted({label_from_move(move, board.turn) for move in board.legal_moves})
        for board in boards
    ]


def skill(elo: Any) -> Any:
    """Return how often players of a rating play the lowest label: 0.2 at 700 to 0.7 at 2700."""
    return np.where(elo == 0, 0.5, 0.2 + 0.05 * (elo - 700) / 200)


class StubNetwork:
    """Plays the lowest legal label with probability `strength(rating)`, else a random one."""

    def __init__(self, rows: dict[str, Any], labels: list[list[int]], strength: Any) -> None:
        self.labels = {row.tobytes(): one for row, one in zip(rows["planes"], labels, strict=True)}
        self.strength = strength

    def __call__(
        self, planes_BP: NDArray[np.uint64], batch: Any
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        chance_B = self.strength(batch["elo"].astype(float))
        # illegal labels have the highest logits, which must not matter
        logits_BA = np.full((len(planes_BP), LABELS), 3.0, dtype=np.float32)
        for row, planes_P in enumerate(planes_BP):
            first, *others = self.labels[planes_P.tobytes()]
            logits_BA[row, others] = np.log((1 - chance_B[row]) / len(others))
            logits_BA[row, first] = np.log(chance_B[row])
        return logits_BA, np.full((len(planes_BP), 3), 1 / 3, dtype=np.float32)


@pytest.fixture(scope="module")
def played() -> Played:
    """Return BAND_ROWS positions of each band, and the labels of their legal moves.

    Players of each band play the lowest label as often as `skill` says.
    """
    rows = playout_rows(400, seed=3)
    labels = legal_labels(rows)
    chosen = np.flatnonzero([len(found) > 1 for found in labels])[: BAND_ROWS * len(BAND_CENTERS)]
    rows = {name: values[chosen] for name, values in rows.items()}
    labels = [labels[at] for at in chosen]
    band, place = np.divmod(np.arange(len(chosen)), BAND_ROWS)
    rows["elo"] = rows["opponent_elo"] = np.array(BAND_CENTERS, dtype=np.uint16)[band]
    lowest = place < np.rint(skill(rows["elo"].astype(float)) * BAND_ROWS)
    pairs = zip(labels, lowest, strict=True)
    rows["label"] = np.array([one[0] if low else one[-1] for one, low in pairs], np.uint16)
    return rows, labels


def test_the_bands_own_rating_predicts_best_if_players_differ_by_rating(played: Played) -> None:
    rows, labels = played
    games = np.arange(len(labels), dtype=np.uint64)
    network: Any = StubNetwork(rows, labels, skill)
    matrix = measure_matrix(network, rows, games, silent)
    assert matrix["ratings"] == list(BAND_CENTERS)
    others = np.array([len(one) - 1 for one in labels]).reshape(-1, BAND_ROWS)
    for band, row in enumerate(matrix["rows"]):
        assert (row["rating"], row["positions"], row["games"]) == (
            BAND_CENTERS[band],
            BAND_ROWS,
            BAND_ROWS,
        )
        hits = round(float(skill(np.array(float(BAND_CENTERS[band])))) * BAND_ROWS)
        for rating, found in zip(BAND_CENTERS, row["log_likelihood"], strict=True):
            chance = skill(np.array(float(rating)))
            missed = np.log((1 - chance) / others[band, hits:]).sum()
            assert found == pytest.approx((hits * np.log(chance) + missed) / BAND_ROWS, abs=1e-5)
        assert row["best"] == row["rating"]
        assert row["other"] in (row["rating"] - 200, row["rating"] + 200)
        assert row["lead_low"] < row["lead"] < row["lead_high"]
        assert row["lead"] > 0
        assert row["true_log_likelihood"] == row["log_likelihood"][band]
    assert describe_matrix(matrix["rows"]).startswith(
        "the band's own rating predicts best in 11 of 11 bands"
    )


def test_a_network_that_ignores_ratings_has_no_best_rating(played: Played) -> None:
    network: Any = StubNetwork(*played, lambda elo: np.full(len(elo), 0.4))
    games = np.arange(len(played[1]), dtype=np.uint64)
    matrix = measure_matrix(network, played[0], games, silent)
    assert {row["verdict"] for row in matrix["rows"]} == {"ties"}
    assert "it wins beyond its 95 % interval in 0 and loses in 0" in describe_matrix(matrix["rows"])


def test_a_sample_has_equally_many_rows_of_each_band_in_any_order_of_the_table() -> None:
    elo = np.append(np.repeat(BAND_CENTERS, 30), np.zeros(10)).astype(np.uint16)
    game = np.arange(len(elo), dtype=np.uint64)
    table = pl.DataFrame({"game": game, "ply": game % 7, "elo": elo})
    chosen = choose_by_band(table, 6)
    assert np.array_equal(elo[chosen], np.repeat(BAND_CENTERS, 6)), "unknown ratings are left out"
    shuffled = table.sample(fraction=1, shuffle=True, seed=0)
    assert shuffled["game"][choose_by_band(shuffled, 6)].to_list() == chosen
    assert set(choose_by_band(table, 2)) < set(chosen)
