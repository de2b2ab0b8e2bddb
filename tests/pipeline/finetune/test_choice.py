"""The choice of teachers by their table, and the settings that follow from it."""

from dataclasses import replace
from typing import Any

import pytest

from pipeline.finetune.choice import EVALUATIONS, Choice, apply, choose, format_choice
from pipeline.finetune.config import FinetuneConfig

LOOP = FinetuneConfig(generations=1)


def row(target: str, teacher: str, simulations: int, figure: float | None, *interval: float) -> dict[str, Any]:
    """Return a row of the table; `interval` is the difference from the target's first row and its ends."""
    names = dict(zip(("difference", "low", "high"), interval or (None, None, None), strict=True))
    return {"target": target, "teacher": teacher, "simulations": simulations, "figure": figure, "factor": None} | names


def table(**changed: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a table in which no teacher is better than the first row of its target, with some rows changed by name."""
    rows = {
        "policy": row("policy", "in play", 64, 0.066, 0.0, 0.0, 0.0),
        "bare_policy": row("policy", "bare", 0, 0.080, 0.014, 0.010, 0.018),
        "visits_64": row("policy", "visits", 64, 0.065, -0.001, -0.004, 0.002),
        "visits_256": row("policy", "visits", 256, 0.064, -0.002, -0.005, 0.001),
        "gumbel_64": row("policy", "gumbel", 64, 0.080, 0.014, 0.010, 0.018),
        "value": row("value", "bare", 0, 0.20, 0.0, 0.0, 0.0),
        "best_64": row("value", "visits: best move", 64, 0.20, 0.0, -0.01, 0.01),
        "best_256": row("value", "visits: best move", 256, 0.19, -0.01, -0.02, 0.01),
        "gumbel_best": row("value", "gumbel: best move", 64, 0.20, 0.0, -0.01, 0.01),
        "root": row("value", "gumbel: root", 64, 0.01, -0.19, -0.2, -0.18),
        "hand": row("value", "hand-written: best move", 64, 0.21, 0.01, -0.01, 0.03),
    }
    return list((rows | changed).values())


VISITS_64 = row("policy", "visits", 64, 0.056, -0.010, -0.014, -0.006)
VISITS_256 = row("policy", "visits", 256, 0.053, -0.013, -0.018, -0.008)
BEST_64 = row("value", "visits: best move", 64, 0.18, -0.02, -0.03, -0.01)
BEST_256 = row("value", "visits: best move", 256, 0.16, -0.04, -0.05, -0.03)
GUMBEL_BEST = row("value", "gumbel: best move", 64, 0.15, -0.05, -0.06, -0.04)
HAND = row("value", "hand-written: best move", 64, 0.12, -0.08, -0.10, -0.06)


def short(choice: Choice) -> tuple[str, str, str, int]:
    return choice.policy, choice.value, choice.algorithm, choice.simulations


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ("none", "none", "puct", 0)),
        ({"visits_64": VISITS_64}, ("visits", "none", "puct", 64)),
        ({"visits_64": VISITS_64, "visits_256": VISITS_256}, ("visits", "none", "puct", 64)),
        ({"visits_256": VISITS_256, "best_64": BEST_64}, ("visits", "best_move", "puct", 256)),
        ({"best_64": BEST_64, "best_256": BEST_256}, ("none", "best_move", "puct", 256)),
        ({"best_64": BEST_64, "gumbel_best": GUMBEL_BEST}, ("none", "best_move", "gumbel", 64)),
        ({"visits_64": VISITS_64, "best_64": BEST_64, "gumbel_best": GUMBEL_BEST}, ("visits", "best_move", "puct", 64)),
        ({"best_64": BEST_64, "hand": HAND}, ("none", "hand_written", "puct", 0)),
        ({"visits_64": VISITS_64, "hand": HAND}, ("visits", "hand_written", "puct", 64)),
    ],
)
def test_the_best_teacher_beyond_chance_is_chosen_and_of_equals_the_cheapest(
    changed: dict[str, Any], expected: tuple[str, str, str, int]
) -> None:
    choice = choose(table(**changed))
    assert short(choice) == expected
    assert choice.nothing == (expected[:2] == ("none", "none"))


def test_the_hand_written_player_is_cheaper_than_any_search_of_a_network() -> None:
    equal = row("value", "hand-written: best move", 64, 0.18, -0.025, -0.04, -0.01)
    assert choose(table(best_64=BEST_64, hand=equal)).value == "hand_written"


def test_a_bare_network_better_than_its_own_search_does_not_teach_itself() -> None:
    better = row("policy", "bare", 0, 0.03, -0.036, -0.04, -0.03)
    assert choose(table(bare_policy=better)).policy == "none"


def test_without_an_engine_no_policy_is_compared_and_too_few_games_choose_nothing() -> None:
    unscored = {name: row("policy", "visits", 64, None) for name in ("visits_64", "visits_256", "gumbel_64")}
    rows = table(
        **unscored,
        policy=row("policy", "in play", 64, None),
        bare_policy=row("policy", "bare", 0, None),
        best_64=BEST_64,
    )
    choice = choose(rows)
    assert short(choice) == ("none", "best_move", "puct", 64)
    assert "needs a chess engine" in choice.policy_reason
    few = row("value", "visits: best move", 64, 0.1) | {"difference": -0.1}
    assert choose(table(best_64=few)).nothing
    assert "too few games" in format_choice(table(best_64=few), choose(table(best_64=few)), "engine", 20, 5)


@pytest.mark.parametrize(
    ("changed", "teach", "explorer", "search"),
    [
        ({}, "none", "network", ("gumbel", 256)),
        ({"visits_64": VISITS_64}, "policy", "network", ("puct", 64)),
        ({"best_256": BEST_256}, "value", "network", ("puct", 256)),
        ({"visits_64": VISITS_64, "best_64": BEST_64}, "both", "network", ("puct", 64)),
        ({"visits_64": VISITS_64, "hand": HAND}, "value", "hand-written", ("puct", 64)),
        ({"hand": HAND}, "value", "hand-written", ("puct", 64)),
    ],
)
def test_settings_follow_from_the_choice(
    changed: dict[str, Any], teach: str, explorer: str, search: tuple[str, int]
) -> None:
    config = apply(choose(table(**changed)), LOOP, rows=60_000)
    assert (config.train.teach, config.explore.explorer) == (teach, explorer)
    assert (config.explore.search.algorithm, config.explore.search.simulations) == search
    assert config.gate == LOOP.gate


def test_the_table_fits_a_terminal_and_gives_a_reason_for_each_target() -> None:
    rows = [*table(visits_64=VISITS_64, hand=HAND), row("value", EVALUATIONS, 0, 0.20, 0.0, -0.01, 0.01)]
    text = format_choice(rows, choose(rows), "engine", 400, 200)
    shown, said = text.split("\n\n")
    assert len(shown.splitlines()) == 1 + len(rows)
    assert max(map(len, shown.splitlines())) <= 76
    assert max(map(len, said.splitlines())) <= 76
    words = " ".join(said.split())
    assert (
        "The policy learns from the policy after 64 simulations of PUCT: a sampled move loses 0.0560, the move" in words
    )
    assert "(-0.0100, -0.0140 to -0.0060)" in words
    assert "the best move after 64 simulations of the hand-written player" in words
    nothing = format_choice(table(), choose(table()), "results", 400, 200)
    assert "human rows alone" in nothing
    assert "Brier" in nothing


def test_evaluations_in_peoples_rows_teach_the_value_without_a_search() -> None:
    evaluations = row("value", EVALUATIONS, 0, 0.04, -0.16, -0.18, -0.14)
    choice = choose([*table(best_64=BEST_64), evaluations])
    assert short(choice) == ("none", "evaluations", "puct", 0)
    assert choice.nothing
    choice = choose([*table(visits_64=VISITS_64, best_64=BEST_64), evaluations])
    assert apply(choice, LOOP, rows=60_000).train.teach == "policy"


def test_settings_of_the_hand_written_teacher_leave_those_of_the_user_alone() -> None:
    choice = choose(table(hand=HAND))
    usual = apply(choice, LOOP, rows=60_000)
    assert (usual.explore.count, usual.human_share, usual.train.results) == (120_000, 0.15, False)
    assert usual.sources.keys() == {"people", "near"}
    assert usual.sources["people"].count == 40_000
    many = apply(choice, LOOP, rows=4_000_000)
    assert (many.explore.count, many.near_share, many.train.learning_rate) == (500_000, 0.3, 1e-3)
    assert (usual.train.keep_policy, many.train.keep_policy) == (True, False)
    for share, expected in ((0.5, 80_000), (0.9, 120_000)):
        set_share = apply(choice, replace(LOOP, near_share=share), rows=60_000)
        assert set_share.explore.count == expected
        assert set_share.sources["people"].count <= 40_000, "more are not searched, since some positions repeat"
    with_games = apply(choice, replace(LOOP, games_share=0.5), rows=60_000)
    assert {name: source.count for name, source in with_games.sources.items() if name != "games"} == {
        "people": 20_000,
        "near": 40_000,
    }
    mine = replace(
        LOOP,
        human_share=0.3,
        explore=replace(LOOP.explore, count=1000),
        train=replace(LOOP.train, learning_rate=1e-4),
    )
    config = apply(choice, mine, rows=60_000)
    assert (config.human_share, config.explore.count, config.train.learning_rate) == (0.3, 1000, 1e-4)
    assert config.train.results is False
    assert (usual.explore.search.algorithm, usual.explore.search.simulations) == ("puct", 64)
    search = replace(LOOP.explore.search, simulations=512)
    assert apply(choice, replace(LOOP, explore=replace(LOOP.explore, search=search)), rows=9).explore.search == search
