"""Losses and metrics on numbers that a person can check."""

import math

import numpy as np
import pytest

from model.metrics import Totals, average_metrics, output_metrics
from tests.model.synthetic import batch


def position(legal: list[int], label: int, result: int) -> dict[str, np.ndarray]:
    planes = np.zeros((1, 77), np.uint64)
    for move in legal:
        planes[0, 13 + move // 64] |= np.uint64(1) << np.uint64(move % 64)
    return {
        "planes": planes,
        "label": np.array([label], np.uint16),
        "result": np.array([result], np.int8),
    }


def logits(**by_label: float) -> np.ndarray:
    values = np.full((1, 4096), -1e4, np.float32)
    for name, value in by_label.items():
        values[0, int(name[1:])] = value
    return values


WDL = np.array([[0.5, 0.3, 0.2]], np.float32)


def test_metrics_of_one_row_by_hand() -> None:
    # half of the probability is on the illegal label 9; the legal labels 3, 100 and 4000 have 1/8,
    # 2/8 and 5/8 of the other half
    given = logits(_3=math.log(1), _100=math.log(2), _4000=math.log(5), _9=math.log(8))
    found = output_metrics(given, WDL, position([3, 100, 4000], label=100, result=1))
    assert found["rank"].tolist() == [2]
    assert found["legal_moves"].tolist() == [3]
    assert found["nll"] == pytest.approx([math.log(4)], rel=1e-5)
    assert found["legal_mass"] == pytest.approx([0.5], rel=1e-5)
    assert found["expected"] == pytest.approx([0.65])
    assert found["brier"] == pytest.approx([0.35**2], rel=1e-5)
    assert found["wdl_brier"] == pytest.approx([0.5**2 + 0.3**2 + 0.2**2], rel=1e-5)
    assert average_metrics(found) == pytest.approx(
        {
            "positions": 1,
            "top1": 0,
            "top3": 1,
            "top5": 1,
            "cross_entropy": math.log(4),
            "legal_mass": 0.5,
            "value_brier": 0.1225,
            "wdl_brier": 0.38,
        },
        rel=1e-5,
    )


def test_equal_logits_are_ranked_by_label() -> None:
    legal = list(range(0, 4096, 128))
    equal = np.zeros((1, 4096), np.float32)
    ranks = [int(output_metrics(equal, WDL, position(legal, move, 0))["rank"][0]) for move in legal]
    assert ranks == list(range(1, 33))


def test_totals_of_batches_equal_the_whole() -> None:
    data, random, totals = batch(30), np.random.default_rng(0), Totals()
    policy = random.normal(size=(30, 4096)).astype(np.float32)
    wdl = random.dirichlet([1, 1, 1], 30).astype(np.float32)
    for part in (slice(0, 7), slice(7, 30)):
        rows = {name: column[part] for name, column in data.items()}
        totals.add(output_metrics(policy[part], wdl[part], rows))
    assert totals.summary() == pytest.approx(average_metrics(output_metrics(policy, wdl, data)))
    assert Totals().summary() == {"positions": 0}


def test_value_means_skip_positions_without_a_game() -> None:
    one, two = position([3], label=3, result=1), position([3], label=3, result=0)
    both = {name: np.concatenate([one[name], two[name]]) for name in one}
    given, chances = np.concatenate([logits(_3=0.0)] * 2), np.concatenate([WDL] * 2)
    found = average_metrics(
        output_metrics(given, chances, both | {"plies": np.array([40, 0], np.uint16)})
    )
    assert (found["positions"], found["top1"]) == (2, 1.0)
    assert (found["value_brier"], found["wdl_brier"]) == pytest.approx((0.35**2, 0.38))
    none = average_metrics(output_metrics(given, chances, both | {"plies": np.zeros(2, np.uint16)}))
    assert none["top1"] == 1.0
    assert not {"value_brier", "wdl_brier"} & set(none)
