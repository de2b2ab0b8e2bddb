"""The matrix of ratings against likelihoods in closed form and torch's, and the sample that it is
measured on."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.encoding.planes import LABELS, label_of
from engine.progress import silent
from model.data.playouts import playout_rows
from pipeline.evaluation.charts import board_of
from pipeline.evaluation.rating_matrix import (
    CENTERS,
    NAMES,
    BandSample,
    describe_matrix,
    measure_matrix,
)


def legal_labels(batch: Any) -> list[list[int]]:
    """Return the labels of each row's moves, ascending, by python-chess."""
    columns = (batch[name].tolist() for name in ("castling", "ep_file", "ply"))
    rows = zip(batch["planes"], *columns, strict=True)
    return [_labels(planes_P.tobytes(), *state) for planes_P, *state in rows]


@cache
def _labels(planes: bytes, castling: int, ep_file: int, ply: int) -> list[int]:
    board = board_of(np.frombuffer(planes, dtype=np.uint64), castling, ep_file, ply)
    return sorted({label_of(move, board.turn) for move in board.legal_moves})


class Stub:
    """Plays the lowest legal label with a chance that depends on the given rating, the others
    alike."""

    def __init__(self, strength: Any) -> None:
        self.strength = strength

    def __call__(
        self, planes_BP: NDArray[np.uint64], batch: Any
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        chance_B = self.strength(batch["elo"].astype(float))
        # illegal labels are no matter
        logits_BA = np.full((len(planes_BP), LABELS), 3.0, dtype=np.float32)
        for row, (first, *others) in enumerate(legal_labels({**batch, "planes": planes_BP})):
            logits_BA[row, others] = np.log((1 - chance_B[row]) / max(len(others), 1))
            logits_BA[row, first] = np.log(chance_B[row])
        return logits_BA, np.full((len(planes_BP), 3), 1 / 3, dtype=np.float32)


A_BAND = 20
"""Positions of each band; people of band b play the lowest label in b + 4 of them."""


def skill(elo: Any) -> Any:
    """Return the share of positions where people of a rating play the lowest label: 0.2 at 700 to
    0.7 at 2700."""
    return np.where(elo == 0, 0.5, 0.2 + 0.05 * (elo - 700) / 200)


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    """Give 20 positions of several moves for each band, in which people play as often as their
    skill the lowest label."""
    rows = playout_rows(400, seed=3)
    labels = legal_labels(rows)
    chosen = np.flatnonzero([len(found) > 1 for found in labels])[: A_BAND * len(CENTERS)]
    rows = {name: values[chosen] for name, values in rows.items()}
    number = np.arange(len(chosen))
    band, place = number // A_BAND, number % A_BAND
    rows["elo"] = rows["opponent_elo"] = np.array(CENTERS, dtype=np.uint16)[band]
    first = place < np.rint(skill(rows["elo"].astype(float)) * A_BAND)
    own = [labels[at] for at in chosen]
    rows["label"] = np.array(
        [found[0] if it else found[-1] for found, it in zip(own, first, strict=True)], np.uint16
    )
    rows["promotion"] = np.zeros(len(chosen), dtype=np.uint8)
    return rows


def sampled(rows: dict[str, Any], count: int, order: Any = None) -> BandSample:
    """Return a sample of rows that came in small batches, each row of a game of its own."""
    sample = BandSample(count)
    order = np.arange(len(rows["elo"])) if order is None else order
    for part in np.array_split(order, 7):
        sample.add({name: values[part] for name, values in rows.items()}, part.astype(np.uint64))
    return sample


def test_the_diagonal_of_a_network_that_plays_as_it_is_told_wins_with_the_likelihood_in_closed_form(
    rows: dict[str, Any],
) -> None:
    matrix = measure_matrix(Stub(skill), sampled(rows, A_BAND), silent)  # type: ignore[arg-type]
    assert matrix["ratings"] == list(CENTERS)
    others = np.array([len(labels) - 1 for labels in legal_labels(rows)])
    for band, row in enumerate(matrix["rows"]):
        assert (row["band"], row["rating"], row["positions"], row["games"]) == (
            NAMES[band],
            CENTERS[band],
            A_BAND,
            A_BAND,
        )
        share = skill(np.array(float(CENTERS[band])))
        mine = others[band * A_BAND + round(share * A_BAND) : (band + 1) * A_BAND]
        for rating, found in zip(CENTERS, row["log_likelihood"], strict=True):
            chance = skill(np.array(float(rating)))
            wanted = (
                share * np.log(chance)
                + (np.log(1 - chance) * len(mine) - np.log(mine).sum()) / A_BAND
            )
            assert found == pytest.approx(wanted, abs=1e-5)
        assert row["best"] == row["rating"]
        assert row["lead"] > 0
        assert row["other"] in (row["rating"] - 200, row["rating"] + 200)
        assert row["lead_low"] < row["lead"] < row["lead_high"]
        assert row["true_log_likelihood"] == row["log_likelihood"][band], (
            "both players have the rating of their band"
        )
    assert describe_matrix(matrix).startswith(
        "the band's own rating predicts best in 11 of 11 bands"
    )


def test_a_network_that_hears_nothing_leads_nowhere(rows: dict[str, Any]) -> None:
    deaf = Stub(lambda elo: np.full(len(elo), 0.4))
    matrix = measure_matrix(deaf, sampled(rows, A_BAND), silent)  # type: ignore[arg-type]
    assert {row["verdict"] for row in matrix["rows"]} == {"ties"}
    assert "it wins beyond its 95 % interval in 0 and loses in 0" in describe_matrix(matrix)


def test_a_sample_has_as_many_of_each_band_whatever_the_order(rows: dict[str, Any]) -> None:
    more = {name: np.concatenate([values, values[:50]]) for name, values in rows.items()}
    more["elo"] = more["elo"].copy()
    more["elo"][-10:] = 0
    batch, band_R = sampled(more, 6).take()
    assert np.bincount(band_R).tolist() == [6] * len(CENTERS)
    assert len(np.unique(batch["game_id"])) == len(band_R), "no row stands twice"
    assert not np.isin(
        batch["game_id"], np.arange(len(more["elo"]) - 10, len(more["elo"]))
    ).any(), "unknown ratings"
    order = np.random.default_rng(0).permutation(len(more["elo"]))
    again, _ = sampled(more, 6, order).take()
    np.testing.assert_array_equal(batch["game_id"], again["game_id"])
    fewer, _ = sampled(more, 2).take()
    assert set(fewer["game_id"].tolist()) < set(batch["game_id"].tolist())
