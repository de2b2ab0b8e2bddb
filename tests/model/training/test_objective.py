"""Losses against their definitions, written out here by other means."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from model.data.outputs import flatten_policy
from model.training.config import TrainConfig
from model.training.objective import (
    EVAL_MARGIN,
    NO_EVAL,
    VALUE_FORMS,
    Targets,
    row_losses,
    value_target,
    wdl_from_centipawns,
    wdl_from_score,
)
from model.training.policy_loss import Visits, normalize_visits, policy_terms, soft_terms
from pipeline.dataset.files.columns import BATCH_SENTINELS

ROWS, LABELS = 5, 4096


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def legal_rows(seed: int = 1) -> Tensor:
    """Make about thirty legal labels a row, label 7 always."""
    legal = torch.rand(ROWS, LABELS, generator=torch.Generator().manual_seed(seed)) < 30 / LABELS
    legal[:, 7] = True
    return legal


def targets(**changes: Any) -> Targets:
    row: dict[str, Any] = {
        "legal": legal_rows(),
        "labels": torch.full((ROWS,), 7),
        "results": torch.tensor([1, 0, -1, 1, 0]),
    }
    return Targets(**(row | changes))


def losses(
    config: dict[str, Any],
    policy: Any,
    value: Tensor,
    rows: Targets,
    form: str = "wdl",
    left: tuple[Tensor, ...] = (),
) -> dict[str, Tensor]:
    outputs = (policy, value, *left)
    return row_losses(TrainConfig(steps=1, **config), VALUE_FORMS[form], outputs, rows)


def by_hand(logits: Tensor, legal: Tensor, target: dict[int, float]) -> float:
    """Give one row's cross-entropy against a sparse target, in Python floats."""
    total = math.fsum(math.exp(float(logits[label])) for label in legal.nonzero()[:, 0])
    return -math.fsum(
        share * (float(logits[label]) - math.log(total)) for label, share in target.items()
    )


def test_smoothing_spreads_over_legal_moves_only() -> None:
    logits, legal = random(ROWS, LABELS), legal_rows()
    smoothed, _ = soft_terms(logits, legal, torch.full((ROWS,), 7), smoothing=0.3)
    for row in range(ROWS):
        moves = legal[row].nonzero()[:, 0].tolist()
        target = {label: 0.3 / len(moves) + (0.7 if label == 7 else 0.0) for label in moves}
        assert float(smoothed[row]) == pytest.approx(
            by_hand(logits[row], legal[row], target), abs=1e-4
        )
    other = logits.masked_fill(~legal, 50.0)
    assert torch.allclose(
        soft_terms(other, legal, torch.full((ROWS,), 7), smoothing=0.3)[0], smoothed, atol=1e-4
    )


def some_visits(legal: Tensor) -> tuple[Visits, dict[int, dict[int, float]]]:
    """Give rows 0 and 3 two visited moves each: shares 3 and 1, and 0.5 and 0.5."""
    moves = {row: legal[row].nonzero()[:2, 0].tolist() for row in (0, 3)}
    visits = Visits(
        torch.tensor([0, 0, 3, 3]),
        torch.tensor(moves[0] + moves[3]),
        torch.tensor([3.0, 1.0, 0.5, 0.5]),
    )
    return visits, {
        0: dict(zip(moves[0], (0.75, 0.25), strict=True)),
        3: dict.fromkeys(moves[3], 0.5),
    }


def test_visits_replace_the_played_move() -> None:
    logits, legal = random(ROWS, LABELS), legal_rows()
    visits, shares = some_visits(legal)
    found, _ = soft_terms(logits, legal, torch.full((ROWS,), 7), visits=visits)
    for row in range(ROWS):
        target = shares.get(row, {7: 1.0})
        assert float(found[row]) == pytest.approx(
            by_hand(logits[row], legal[row], target), abs=1e-4
        )


def test_temperature_sharpens_and_flattens_visits() -> None:
    visits = Visits(torch.tensor([2, 2]), torch.tensor([5, 6]), torch.tensor([0.8, 0.2]))
    assert normalize_visits(visits, 4, 1.0).tolist() == pytest.approx([0.8, 0.2])
    assert normalize_visits(visits, 4, 0.5).tolist() == pytest.approx([16 / 17, 1 / 17])
    assert normalize_visits(visits, 4, 2.0).tolist() == pytest.approx([2 / 3, 1 / 3])


def test_an_illegal_visit_makes_its_row_infinite_and_no_other() -> None:
    legal = legal_rows()
    illegal = int((~legal[1]).nonzero()[0, 0])
    visits = Visits(torch.tensor([0, 1]), torch.tensor([7, illegal]), torch.ones(2))
    found, _ = soft_terms(random(ROWS, LABELS), legal, torch.full((ROWS,), 7), visits=visits)
    assert found.isinf().tolist() == [False, True, False, False, False]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_gradient_of_a_soft_target_is_probability_less_target(smoothing: float) -> None:
    logits, legal = random(ROWS, LABELS).requires_grad_(), legal_rows()
    visits, _ = some_visits(legal)
    found, _ = soft_terms(
        logits, legal, torch.full((ROWS,), 7), smoothing=smoothing, visits=visits, temperature=1.5
    )
    found.sum().backward()
    probabilities = logits.detach().masked_fill(~legal, float("-inf")).softmax(1)
    target = torch.nn.functional.one_hot(torch.full((ROWS,), 7), LABELS).float()
    target[[0, 3]] = 0.0
    target[visits.rows, visits.labels] = normalize_visits(visits, ROWS, 1.5)
    target = (1 - smoothing) * target + smoothing * legal / legal.sum(1, keepdim=True)
    assert target.sum(1).tolist() == pytest.approx([1.0] * ROWS)
    assert logits.grad is not None
    assert torch.allclose(logits.grad, probabilities - target, atol=1e-6)


def test_the_loss_of_a_factored_policy_is_the_sum_of_its_parts_losses() -> None:
    """Cross-entropy of the from-square, and of the to-square given it, among all squares."""
    policy, labels = (
        (random(ROWS, 64), random(ROWS, 64, 64, seed=2)),
        torch.tensor([0, 70, 4095, 123, 2048]),
    )
    rows = targets(legal=torch.ones(ROWS, LABELS, dtype=torch.bool), labels=labels)
    found = losses({}, policy, random(ROWS, 3), rows)["policy_loss"]
    from_loss = torch.nn.functional.cross_entropy(policy[0], labels // 64, reduction="none")
    to_loss = torch.nn.functional.cross_entropy(
        policy[1][range(ROWS), labels // 64], labels % 64, reduction="none"
    )
    assert torch.allclose(found, from_loss + to_loss, atol=1e-4)


def test_a_factored_policy_is_a_distribution_over_4096() -> None:
    policy = random(ROWS, 64), random(ROWS, 64, 64, seed=2)
    log_chances = flatten_policy(policy)
    assert log_chances.exp().sum(1).tolist() == pytest.approx([1.0] * ROWS, abs=1e-5)
    assert float(log_chances[2, 9 * 64 + 5]) == pytest.approx(
        float(policy[0][2].log_softmax(0)[9] + policy[1][2, 9].log_softmax(0)[5]), abs=1e-5
    )


def test_a_legality_weight_of_one_is_the_unmasked_cross_entropy() -> None:
    logits, rows = random(ROWS, LABELS), targets()
    loss = losses({"legality_weight": 1.0, "value_weight": 0.0}, logits, random(ROWS, 3), rows)[
        "loss"
    ]
    assert torch.allclose(
        loss, torch.nn.functional.cross_entropy(logits, rows.labels, reduction="none"), atol=1e-5
    )


def test_an_evaluation_is_chances_and_mirrors() -> None:
    evals = torch.tensor([0, 100, -100, 30_000, -30_000, 1000])
    wdl = wdl_from_centipawns(evals)
    assert wdl.sum(1).tolist() == pytest.approx([1.0] * 6)
    assert float(wdl.min()) > 0
    assert torch.allclose(wdl[1], wdl[2].flip(0))
    assert torch.equal(wdl[3], wdl[5])
    assert float(wdl[0, 0]) == float(wdl[0, 2])
    even = wdl_from_centipawns(torch.tensor([EVAL_MARGIN]))
    assert float(even[0, 0]) == pytest.approx(0.5)
    assert float(wdl[1, 0] - wdl[1, 2]) > 0


def test_a_blend_leaves_rows_without_evaluation_alone() -> None:
    assert BATCH_SENTINELS["eval"] == NO_EVAL
    results, evals = torch.tensor([1, 0, -1]), torch.tensor([NO_EVAL, 50, -200])
    mixed = value_target(
        TrainConfig(steps=1, eval_blend=0.25), targets(results=results, evals=evals)
    )
    assert mixed[0].tolist() == [1.0, 0.0, 0.0]
    engine = wdl_from_centipawns(evals)
    assert mixed[1].tolist() == pytest.approx(
        (0.75 * torch.tensor([0.0, 1.0, 0.0]) + 0.25 * engine[1]).tolist()
    )
    assert mixed[2].tolist() == pytest.approx(
        (0.75 * torch.tensor([0.0, 0.0, 1.0]) + 0.25 * engine[2]).tolist()
    )


@pytest.mark.parametrize("form", ["wdl", "tanh"])
def test_value_losses_by_their_formulas(form: str) -> None:
    evals = torch.tensor([100, NO_EVAL, -300, 20, 0])
    rows = targets(evals=evals)
    value = random(ROWS, 3) if form == "wdl" else random(ROWS, 1).tanh()
    chances = value.softmax(1)
    score = chances[:, 0] - chances[:, 2] if form == "wdl" else value[:, 0]

    def value_loss(**config: Any) -> Tensor:
        return losses(config, random(ROWS, LABELS), value, rows, form)["value_loss"]

    target = value_target(TrainConfig(steps=1, eval_blend=0.5), rows)
    wanted = target[:, 0] - target[:, 2]
    plain = (
        -chances.log().gather(1, 1 - rows.results[:, None])[:, 0]
        if form == "wdl"
        else (score - rows.results) ** 2
    )
    soft = -(target * chances.log()).sum(1) if form == "wdl" else (score - wanted) ** 2
    assert torch.allclose(value_loss(eval_blend=0.0), plain, atol=1e-5)
    assert torch.allclose(value_loss(eval_blend=0.5), soft, atol=1e-5)
    assert torch.allclose(
        value_loss(value_loss="mse", eval_blend=0.0), (score - rows.results) ** 2, atol=1e-5
    )
    assert torch.allclose(
        value_loss(value_loss="mse", eval_blend=0.5), (score - wanted) ** 2, atol=1e-5
    )
    error = (score - rows.results).abs()
    huber = torch.where(error <= 0.5, error**2 / 2, 0.5 * (error - 0.25))
    assert torch.allclose(value_loss(value_loss="huber", eval_blend=0.0), huber, atol=1e-5)


def test_moves_left_counts_plies_in_twenties() -> None:
    rows = targets(plies_left=torch.tensor([40.0, 44.0, 60.0, 0.0, 20.0]))
    arguments = random(ROWS, LABELS), random(ROWS, 3), rows, "wdl"
    found = losses({}, *arguments, left=(torch.full((ROWS, 1), 40.0),))
    assert found["moves_left_loss"].tolist() == pytest.approx([0.0, 0.02, 0.375, 0.875, 0.375])
    without = losses({}, *arguments)
    assert torch.allclose(
        found["loss"] - without["loss"], 0.05 * found["moves_left_loss"], atol=1e-5
    )
    assert "moves_left_loss" not in without


@pytest.mark.parametrize("rule", ["auto", "mse", "huber"])
def test_a_network_without_a_value_is_asked_none(rule: str) -> None:
    found = losses(
        {"value_loss": rule, "eval_blend": 0.5},
        random(ROWS, LABELS),
        random(ROWS, 0),
        targets(),
        "none",
    )
    assert found["value_loss"].tolist() == [0.0] * ROWS
    assert torch.equal(found["loss"], found["policy_loss"] + 0.02 * found["illegal"])
    assert VALUE_FORMS["none"].wdl(random(ROWS, 0)).sum(1).tolist() == pytest.approx([1.0] * ROWS)


def test_the_loss_is_its_parts_by_weight() -> None:
    found = losses(
        {"legality_weight": 0.3, "value_weight": 2.0},
        random(ROWS, LABELS),
        random(ROWS, 3),
        targets(),
    )
    assert torch.allclose(
        found["loss"], found["policy_loss"] + 0.3 * found["illegal"] + 2.0 * found["value_loss"]
    )
    plain, illegal = policy_terms(random(ROWS, LABELS), legal_rows(), torch.full((ROWS,), 7))
    assert torch.equal(found["policy_loss"], plain)
    assert torch.equal(found["illegal"], illegal)


def test_a_searchs_value_is_the_chances_of_the_evaluation_that_has_its_score() -> None:
    evals = torch.arange(-1000, 1001, 50)
    chances = wdl_from_centipawns(evals)
    assert torch.allclose(wdl_from_score(chances[:, 0] - chances[:, 2]), chances, atol=2e-6)
    scores = torch.tensor([-1.0, -0.999, -0.5, -0.01, 0.0, 0.3, 0.97, 1.0, 1.02])
    wdl = wdl_from_score(scores)
    assert (wdl[:, 0] - wdl[:, 2]).tolist() == pytest.approx(scores.clamp(-1, 1).tolist(), abs=3e-6)
    assert wdl.sum(1).tolist() == pytest.approx([1.0] * 9)
    assert float(wdl.min()) > -1e-6


@pytest.mark.parametrize("blend", [0.0, 0.25])
def test_a_searchs_value_takes_its_share_of_what_the_value_was_taught(blend: float) -> None:
    """In float64, where a row has one; rows without are as they were."""
    nan = float("nan")
    rows = targets(
        search_values=torch.tensor([0.5, nan, -0.9, 0.0, nan]),
        evals=torch.tensor([NO_EVAL, 80, 80, NO_EVAL, -40]),
    )
    config = {"teach": "both", "search_value_share": 0.4, "eval_blend": blend}
    value = random(ROWS, 3)
    before = losses({"eval_blend": blend}, random(ROWS, LABELS), value, rows)["value_loss"]
    after = losses(config, random(ROWS, LABELS), value, rows)["value_loss"]
    assert after[[1, 4]].tolist() == pytest.approx(before[[1, 4]].tolist())
    for row in (0, 2, 3):
        logs = [
            float(it) - math.log(math.fsum(math.exp(float(it)) for it in value[row]))
            for it in value[row]
        ]
        root = (
            wdl_from_score(rows.search_values[row : row + 1])[0].tolist()
            if rows.search_values is not None
            else []
        )
        searched = -math.fsum(share * log for share, log in zip(root, logs, strict=True))
        assert float(after[row]) == pytest.approx(
            0.6 * float(before[row]) + 0.4 * searched, abs=1e-5
        )
    tanh = random(ROWS, 1).tanh()
    found = losses({**config, "eval_blend": 0.0}, random(ROWS, LABELS), tanh, rows, "tanh")[
        "value_loss"
    ]
    wanted = [0.6 * 1 + 0.4 * 0.5, 0.0, 0.6 * -1 + 0.4 * -0.9, 0.6 * 1, 0.0]
    assert found.tolist() == pytest.approx(
        [(float(said) - it) ** 2 for said, it in zip(tanh[:, 0], wanted, strict=True)], abs=1e-5
    )


def test_a_searched_position_of_no_game_teaches_the_searchs_value_alone() -> None:
    """Its result and its evaluation, whatever they are, do not count; one that was not searched has
    its evaluation alone."""
    nan = float("nan")
    search_values = torch.tensor([0.5, 0.5, nan, nan, -0.2])
    has_game = torch.tensor([True, False, True, False, False])
    rows = targets(search_values=search_values, has_game=has_game, evals=torch.full((ROWS,), 700))
    value = random(ROWS, 3)
    config = {"teach": "both", "search_value_share": 0.25, "eval_blend": 0.5}
    found = losses(config, random(ROWS, LABELS), value, rows)["value_loss"]
    whole = losses(config | {"search_value_share": 1.0}, random(ROWS, LABELS), value, rows)[
        "value_loss"
    ]
    assert found[[1, 4]].tolist() == whole[[1, 4]].tolist()
    evaluated = losses({"eval_blend": 1.0}, random(ROWS, LABELS), value, rows)["value_loss"]
    assert float(found[3]) == float(evaluated[3]) > 0.0
    assert float(found[0]) != pytest.approx(float(whole[0]))
    silent = losses(config | {"search_value_share": 0.0}, random(ROWS, LABELS), value, rows)[
        "value_loss"
    ]
    assert silent[~has_game].tolist() == evaluated[~has_game].tolist()
    assert bool((silent[has_game] > 0).all())


def test_evaluated_positions_train_the_value_alone_and_no_policy_without_a_move() -> None:
    """Rows 0 and 1 are of a game, the others were only evaluated, row 4 without a result; rows 2
    and 4 have no move."""
    has_game, has_label = (
        torch.tensor([True, True, False, False, False]),
        torch.tensor([True, True, False, True, False]),
    )
    rows = targets(
        evals=torch.tensor([80, NO_EVAL, 120, -300, NO_EVAL]),
        has_game=has_game,
        has_label=has_label,
    )
    logits, value = random(ROWS, LABELS).requires_grad_(), random(ROWS, 3).requires_grad_()
    found = losses({"eval_blend": 0.25, "legality_weight": 0.5}, logits, value, rows)
    alone = losses({"eval_blend": 1.0}, logits, value, rows)["value_loss"]
    assert found["value_loss"][2:4].tolist() == pytest.approx(alone[2:4].tolist())
    assert found["value_loss"][4].item() == 0.0
    assert found["value_loss"][0].item() != pytest.approx(alone[0].item())
    assert (
        found["policy_loss"][~has_label].tolist()
        == found["illegal"][~has_label].tolist()
        == [0.0, 0.0]
    )
    found["loss"].sum().backward()
    assert logits.grad is not None
    assert value.grad is not None
    assert not logits.grad[~has_label].any()
    assert logits.grad[has_label].abs().sum(1).min() > 0
    assert value.grad.abs().sum(1).gt(0).tolist() == [True, True, True, True, False]
    without = losses({"eval_blend": 0.0}, logits, value, rows)["value_loss"]
    assert without[~has_game].tolist() == [0.0] * 3


def test_searches_teach_the_policy_or_the_value_or_both() -> None:
    """Rows 0 and 3 were searched; a target that they do not teach is as in other rows. Without
    visits as with value."""
    nan = float("nan")
    visits, _ = some_visits(legal_rows())
    searched = torch.tensor([True, False, False, True, False])
    rows = targets(visits=visits, search_values=torch.tensor([0.5, nan, nan, -0.5, nan]))
    logits, value = random(ROWS, LABELS), random(ROWS, 3)
    plain = losses({}, logits, value, targets())
    found = {word: losses({"teach": word}, logits, value, rows) for word in ("policy", "both")}
    found["value"] = losses({"teach": "value"}, logits, value, replace(rows, visits=None))
    assert torch.equal(found["policy"]["value_loss"], plain["value_loss"])
    assert torch.equal(found["policy"]["policy_loss"], found["both"]["policy_loss"])
    assert torch.equal(found["value"]["value_loss"], found["both"]["value_loss"])
    for part in ("policy_loss", "illegal"):
        assert torch.equal(found["value"][part], plain[part])
    assert not torch.isclose(
        found["both"]["policy_loss"][searched], plain["policy_loss"][searched]
    ).any()
    assert not torch.isclose(
        found["value"]["value_loss"][searched], plain["value_loss"][searched]
    ).any()


def test_a_policy_is_kept_in_rows_whose_move_is_not_known() -> None:
    """Those of rows 0 and 3; theirs is the cross-entropy against the reference, least where both
    policies are equal."""
    searched, reference = torch.tensor([True, False, False, True, False]), random(ROWS, LABELS)
    rows = targets(has_label=~searched, reference=reference)
    logits, value = reference.clone().requires_grad_(), random(ROWS, 3)
    found = losses({"teach": "value", "legality_weight": 0.0}, logits, value, rows)["policy_loss"]
    plain = losses({}, reference, value, targets())["policy_loss"]
    assert torch.allclose(found[~searched], plain[~searched])
    for row in (0, 3):
        kept = reference[row, rows.legal[row]].double().softmax(0)
        assert float(found[row].detach()) == pytest.approx(
            float(-(kept * kept.log()).sum()), abs=1e-4
        )
    found.sum().backward()
    assert logits.grad is not None
    assert logits.grad[searched].abs().max() < 1e-6
    assert logits.grad[~searched].abs().max() > 1e-2


def test_results_can_be_left_out_of_the_values_target() -> None:
    nan = float("nan")
    rows = targets(
        search_values=torch.tensor([0.5, nan, nan, -0.5, nan]),
        evals=torch.tensor([NO_EVAL, 80, NO_EVAL, 80, NO_EVAL]),
    )
    flipped = replace(rows, results=-rows.results)
    config = {"teach": "both", "search_value_share": 0.25, "eval_blend": 0.5, "results": False}
    value = random(ROWS, 3)
    found, other = (
        losses(config, random(ROWS, LABELS), value, one)["value_loss"] for one in (rows, flipped)
    )
    assert torch.equal(found, other)
    assert (found > 0).tolist() == [True, True, False, True, False]
    evals = losses({"eval_blend": 1.0}, random(ROWS, LABELS), value, rows)["value_loss"]
    searches = losses({"teach": "both"}, random(ROWS, LABELS), value, rows)["value_loss"]
    assert found[[0, 1]].tolist() == pytest.approx([float(searches[0]), float(evals[1])])
    assert float(found[3]) == pytest.approx(
        0.75 * float(evals[3]) + 0.25 * float(searches[3]), abs=1e-5
    )


@pytest.mark.parametrize("config", [{}, {"value_loss": "mse"}, {"eval_blend": 0.5}])
def test_positions_of_no_game_teach_moves_and_nothing_of_results(config: dict[str, Any]) -> None:
    ended = torch.tensor([True, False, True, False, True])
    left = torch.tensor([40.0, -3.0, 60.0, 0.0, 20.0])
    value = random(ROWS, 3).requires_grad_()
    evals = torch.where(ended, 100, NO_EVAL)

    def found(**rows: Any) -> dict[str, Tensor]:
        rows = {"plies_left": left, "evals": evals} | rows
        return losses(
            config,
            random(ROWS, LABELS),
            value,
            targets(**rows),
            left=(torch.full((ROWS, 1), 30.0),),
        )

    whole, part = found(), found(has_game=ended)
    for name in ("value_loss", "moves_left_loss"):
        assert torch.equal(part[name], whole[name] * ended)
        assert bool((whole[name] > 0).all())
    assert torch.equal(part["policy_loss"], whole["policy_loss"])
    (gradient,) = torch.autograd.grad(part["loss"].sum(), value)
    assert gradient[~ended].abs().sum() == 0
    assert bool((gradient[ended].abs().sum(1) > 0).all())
