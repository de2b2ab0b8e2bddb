"""Choose a loop's teachers by the table of `teachers.py`, with reasons, and set the loop accordingly."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from engine.search import SearchConfig
from pipeline.evaluation.render import aligned
from pipeline.finetune.config import SMALLEST_SHARE, FinetuneConfig, LoopTeach, default_explore

Row = Mapping[str, Any]
BEST_MOVE, BARE, IN_PLAY = "best move", "bare", "in play"
Algorithm = Literal["puct", "gumbel"]
OWN_SEARCH: Mapping[str, Algorithm] = {"visits": "puct", "gumbel": "gumbel"}
"""Search algorithm by the teacher whose policy it makes."""
HAND_WRITTEN, EVALUATIONS = "hand-written", "datasets' evaluations"
WIDTH = 76
"""Columns of a terminal, less an indent of four."""
SPEED_RATIO = 16
"""Simulations of the hand-written player in the time of one simulation of a network, on one core."""
HAND_WRITTEN_SIMULATIONS = 64
"""Simulations of the hand-written player's search of a position: 1,024 err hardly less and take 16 times as long."""
HAND_WRITTEN_SETTINGS: Mapping[str, Any] = {
    "human_share": 0.15,
    "train.epochs": 1.5,
    "train.learning_rate": 2e-3,
    "train.value_weight": 1.0,
    "train.results": False,
}
"""Settings with which the hand-written player teaches, where they were left at their defaults (docs/log/2026-11-25.md)."""
MANY_ROWS = 500_000
MANY_ROWS_SETTINGS: Mapping[str, Any] = {"train.keep_policy": False, "train.learning_rate": 1e-3}
"""Settings that differ from MANY_ROWS human rows on, since these rows still teach the policy."""
NEAR_SHARE, NEAR_SHARE_OF_MANY = 2 / 3, 0.3
"""Share of near positions among the searched ones, games excluded: by default, and from MANY_ROWS human rows on."""
MOST_POSITIONS, POSITIONS_PER_ROW = 500_000, 2
"""Maximum number of positions that the hand-written player searches by default, in all and per human row."""
HUMAN_POSITIONS_PER_ROW = 2 / 3
"""Maximum number of human positions that it searches by default, per human row: some repeat, some are too early."""
REFERENCES = {IN_PLAY: "the move in play", BARE: "the bare network"}
"""First row of the policy and of the value, which their teachers are compared with, in words (docs/log/2026-11-25.md)."""
FIGURES = {
    "engine": "root mean square error of the expected score by an engine",
    "evaluations": "root mean square error of the expected score by the datasets' evaluations",
    "results": "Brier score by the results of the games",
}
"""Figure of a value teacher by referee."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Targets that the searched rows of a loop teach, with the reasons."""

    policy: Literal["visits", "gumbel", "none"]
    """Search whose policy is learned."""
    value: Literal["best_move", "hand_written", "evaluations", "none"]
    """Whose value is learned: that of the best move of the network's search, or of the hand-written player's. Evaluations in
    human rows teach without any search."""
    algorithm: Algorithm
    """Algorithm of the network's search."""
    simulations: int
    """Simulations of the network's search; 0 where it teaches nothing."""
    policy_reason: str
    value_reason: str

    @property
    def nothing(self) -> bool:
        """Return whether human rows alone are trained on."""
        return self.policy == "none" and self.value in ("evaluations", "none")


def choose(rows: Sequence[Row]) -> Choice:
    """Choose by the rows of `score_targets`: the best teacher of each target that is better than the target's first row.

    Better means by more than chance: the 95 % interval of the paired difference is below 0. Of teachers within the best
    one's interval the cheapest is taken. The best move's value comes from the search that makes the policy, if one does.
    """
    policies = [row for row in rows if row["target"] == "policy"]
    policy = _pick(policies)
    algorithms = OWN_SEARCH if policy is None else {policy["teacher"]: OWN_SEARCH[policy["teacher"]]}
    values = [row for row in rows if row["target"] == "value" and _may_teach(row, algorithms)]
    value = _pick(values)
    own = [row for row in (policy, value) if row is not None and row["teacher"].split(":")[0] in OWN_SEARCH]
    return Choice(
        policy="none" if policy is None else policy["teacher"],
        value="none" if value is None else _name_value(value),
        algorithm=OWN_SEARCH[own[0]["teacher"].split(":")[0]] if own else "puct",
        simulations=max((row["simulations"] for row in own), default=0),
        policy_reason=_reason("policy", "a sampled move loses", policies, policy),
        value_reason=_reason("value", "the error is", values, value),
    )


def _name_value(row: Row) -> Literal["best_move", "hand_written", "evaluations"]:
    if row["teacher"] == EVALUATIONS:
        return "evaluations"
    return "hand_written" if _is_hand_written(row) else "best_move"


def _may_teach(row: Row, algorithms: Mapping[str, str]) -> bool:
    """Return whether a value may be learned beside the chosen policy: from a best move of the same search or by hand."""
    search, _, part = row["teacher"].partition(": ")
    return row["teacher"] in (BARE, EVALUATIONS) or (
        part == BEST_MOVE and (search == HAND_WRITTEN or search in algorithms)
    )


def _is_hand_written(row: Row) -> bool:
    return bool(row["teacher"].startswith(HAND_WRITTEN))


def _teachers(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a target that may teach it: neither the first, which they are compared with, nor the bare network."""
    return [row for row in rows[1:] if row["teacher"] != BARE]


def _cost(row: Row) -> float:
    """Return the time of a row's teacher in simulations of a network."""
    return float(row["simulations"] / SPEED_RATIO if _is_hand_written(row) else row["simulations"])


def _pick(rows: Sequence[Row]) -> Row | None:
    """Return the cheapest row within the interval of the best that is better than the first, None without any."""
    better = [row for row in _teachers(rows) if row["high"] is not None and row["high"] < 0.0]
    if not better:
        return None
    best = min(better, key=lambda row: row["figure"])
    near = [row for row in better if row["difference"] <= best["high"]]
    return min(near, key=lambda row: (_cost(row), row["figure"]))


def _reason(target: str, words: str, rows: Sequence[Row], chosen: Row | None) -> str:
    """Return one sentence on the choice of a target's teacher; the first of `rows` is the reference."""
    others = [row for row in _teachers(rows) if row["figure"] is not None]
    if not others:
        return f"No search teaches the {target}: comparing policies needs a chess engine (apt-get install stockfish)."
    row = chosen or min(others, key=lambda row: row["figure"])
    who = f"The {target} learns from" if chosen else f"No search teaches the {target}. The best is"
    first = f"{REFERENCES[rows[0]['teacher']]} {rows[0]['figure']:.4f}"
    doubt = "" if chosen or row["difference"] >= 0.0 else "; that may be chance"
    return f"{who} {_describe(row)}: {words} {row['figure']:.4f}, {first} ({_difference(row)}){doubt}."


def _describe(row: Row) -> str:
    """Return a teacher in words."""
    search, _, part = row["teacher"].partition(": ")
    if row["teacher"] == EVALUATIONS:
        return "the evaluations in people's games"
    words = {"visits": "PUCT", "gumbel": "Gumbel's search", HAND_WRITTEN: "the hand-written player"}[search]
    what = f"the value of the {part}" if part else "the policy"
    return f"{what} after {row['simulations']:,} simulations of {words}"


def _difference(row: Row) -> str:
    """Return a difference from the first row of the target with its interval."""
    if row["difference"] is None:
        return ""
    interval = "too few games" if row["low"] is None else f"{row['low']:+.4f} to {row['high']:+.4f}"
    return f"{row['difference']:+.4f}, {interval}"


def format_choice(rows: Sequence[Row], choice: Choice, referee: str, positions: int, games: int) -> str:
    """Return the table of teachers, at most WIDTH columns wide, and the sentences of the choice."""
    cells = [
        [
            row["target"],
            row["teacher"],
            str(row["simulations"] or ""),
            "-" if row["figure"] is None else f"{row['figure']:.4f}",
            _difference(row) or "-",
        ]
        for row in rows
    ]
    table = aligned(["target", "teacher", "sims", "error", "difference, 95 %"], cells)
    about = (
        f"{positions} held-out positions of {games} games. A policy's error is the expected score that a sampled move "
        "loses, compared with the move that the network's own search plays in a match; a value's, after calibration, is the "
        f"{FIGURES[referee]}, compared with the bare network's."
    )
    said = [choice.policy_reason, choice.value_reason]
    if choice.nothing:
        said.append("No search teaches: the loop trains on human rows alone, with a calibrated value.")
    if choice.policy != "none" and choice.value == "hand_written":
        said.append("One player searches in a generation: the hand-written one, so no search teaches the policy.")
    sentences = (textwrap.fill(f"- {one}", WIDTH, subsequent_indent="  ") for one in said)
    return "\n".join([table, "", textwrap.fill(about, WIDTH), *sentences])


def apply(choice: Choice, config: FinetuneConfig, rows: int) -> FinetuneConfig:
    """Return the loop's settings with `teach` as chosen, and what follows from it: who searches, and how.

    The hand-written player searches in place of the network where it teaches the value; the policy is then left as it is.
    `rows` is the number of human rows.
    """
    if choice.nothing:
        return replace(config, train=replace(config.train, teach="none"))
    explore = config.explore
    if choice.value == "hand_written":
        return teach_by_hand(config, rows)
    search = replace(explore.search, algorithm=choice.algorithm, simulations=choice.simulations)
    teach: LoopTeach = "policy"
    if choice.value == "best_move":
        teach = "value" if choice.policy == "none" else "both"
    return replace(config, explore=replace(explore, search=search), train=replace(config.train, teach=teach))


def hand_written_search(search: SearchConfig) -> SearchConfig:
    """Return the search of the hand-written player: the one that was set, or its own in place of the loop's default."""
    if search != default_explore().search:
        return search
    return replace(search, algorithm="puct", simulations=HAND_WRITTEN_SIMULATIONS)


def teach_by_hand(config: FinetuneConfig, rows: int) -> FinetuneConfig:
    """Return the settings with which the hand-written player teaches the value; those that differ from the defaults stay."""
    usual, explore, train = FinetuneConfig(generations=1), config.explore, config.train
    explore = replace(explore, explorer="hand-written", search=hand_written_search(explore.search))
    if config.near_share == usual.near_share:
        near_share = NEAR_SHARE_OF_MANY if rows >= MANY_ROWS else NEAR_SHARE
        config = replace(config, near_share=near_share * (1.0 - config.games_share))
    if explore.count == usual.explore.count:
        people = max(1.0 - config.near_share - config.games_share, SMALLEST_SHARE)
        count = min(MOST_POSITIONS, POSITIONS_PER_ROW * rows, round(HUMAN_POSITIONS_PER_ROW * rows / people))
        explore = replace(explore, count=max(1, count))
    train = replace(train, teach="value")
    for path, value in {**HAND_WRITTEN_SETTINGS, **(MANY_ROWS_SETTINGS if rows >= MANY_ROWS else {})}.items():
        name = path.removeprefix("train.")
        if name != path and getattr(train, name) == getattr(usual.train, name):
            train = replace(train, **{name: value})
        elif name == path and getattr(config, name) == getattr(usual, name):
            config = replace(config, **{name: value})
    return replace(config, explore=explore, train=train)
