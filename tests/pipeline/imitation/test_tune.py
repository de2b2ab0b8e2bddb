"""How far an imitation goes: the choice under noise, the mixture of weights, and batches of rows in
memory."""

from itertools import islice
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from pipeline.imitation.measure import LATE_PLY, compare
from pipeline.imitation.tune import SHARES, average, choose_share, interpolate, open_batches

MOVES = 30


def tried(
    games: int, seed: int, *, slope: float, late: float | None = None, bend: float = 0.02
) -> list[dict[str, Any]]:
    """Compare shares on simulated games: a share s changes a move's cross-entropy by slope * s +
    bend * s^2, with noise.

    `late` is the slope of moves from LATE_PLY on. Shares of one player share their noise, as real
    ones do.
    """
    random = np.random.default_rng(seed)
    ply = np.tile(np.arange(MOVES) * 2, games)
    game = np.repeat(np.arange(games), MOVES)
    noise = random.normal(0, 0.3, len(ply)) + random.normal(0, 0.05, games)[game]
    slopes = np.where(ply >= LATE_PLY, slope if late is None else late, slope)
    columns = {
        "game": game,
        "ply": ply,
        "key": np.arange(len(ply)),
        "rank": np.ones(len(ply), dtype=int),
    }
    base = pl.DataFrame(columns | {"nll": np.full(len(ply), 2.0)})
    return [
        {
            "share": share,
            **compare(
                "x", base, base.with_columns(nll=2.0 + share * (slopes + noise) + bend * share**2)
            ),
        }
        for share in SHARES
    ]


def test_many_games_that_gain_everywhere_go_all_the_way_and_half_a_gain_half_of_it() -> None:
    assert choose_share(tried(500, 0, slope=-0.08)) == 1.0
    assert choose_share(tried(2000, 0, slope=-0.08, late=-0.02)) in (0.25, 0.5, 0.75)


@pytest.mark.parametrize("games", [30, 127, 500])
def test_harm_from_the_twelfth_move_on_is_seldom_chosen(games: int) -> None:
    """The openings gain much, and late moves lose a little at every share."""
    shares = [choose_share(tried(games, seed, slope=-0.2, late=0.01)) for seed in range(60)]
    assert np.mean(np.array(shares) > 0) < 0.1


def test_a_gain_late_alone_is_no_gain_and_few_games_choose_nothing() -> None:
    assert choose_share(tried(500, 0, slope=0.3, late=-0.05)) == 0.0
    assert choose_share(tried(9, 0, slope=-1.0)) == 0.0  # an interval needs ten games
    assert choose_share([{"share": 1.0}]) == 0.0


def test_the_same_gain_goes_further_with_more_games() -> None:
    means = [
        np.mean([choose_share(tried(games, seed, slope=-0.04)) for seed in range(60)])
        for games in (20, 100, 500)
    ]
    assert means[0] < means[1] < means[2]


def test_a_mixture_begins_at_the_base_and_ends_at_the_mean_of_the_networks() -> None:
    base = {"a": torch.tensor([0.1, 1.0]), "count": torch.tensor(7)}
    networks = [
        {"a": torch.tensor([1.0, 3.0]), "count": torch.tensor(7)},
        {"a": torch.zeros(2), "count": torch.tensor(7)},
    ]
    mean = average(networks)
    assert mean["a"].tolist() == [0.5, 1.5]
    assert torch.equal(interpolate(base, mean, 0.0)["a"], base["a"])
    torch.testing.assert_close(interpolate(base, mean, 0.5)["a"], torch.tensor([0.3, 1.25]))
    torch.testing.assert_close(interpolate(base, mean, 1.0)["a"], mean["a"])
    assert interpolate(base, mean, 0.5)["count"] == 7


@pytest.mark.parametrize("size", [3, 10, 25])
def test_batches_show_each_row_once_an_epoch_and_continue_at_any_step(size: int) -> None:
    rows = {"ply": np.arange(10), "label": np.arange(10) * 2}
    whole = [batch["ply"] for batch in islice(open_batches(rows, size, 0, 0), 10)]
    assert all(len(batch) == size for batch in whole)
    seen = np.concatenate(whole)
    for epoch in range(len(seen) // 10):
        assert sorted(seen[10 * epoch : 10 * epoch + 10].tolist()) == list(range(10))
    for step in (1, 4, 9):
        np.testing.assert_array_equal(next(open_batches(rows, size, 0, step))["ply"], whole[step])
    assert not np.array_equal(whole[0], next(open_batches(rows, size, 1, 0))["ply"])
    assert np.array_equal(next(open_batches(rows, size, 0, 2))["label"], whole[2] * 2)
