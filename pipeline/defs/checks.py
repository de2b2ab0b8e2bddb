"""What each asset promises about itself; a broken blocking promise keeps everything downstream from running."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

FILES = "files_match_manifest"
SPLITS = "no_game_in_two_splits"
WHOLE = "dump_read_to_its_end"
ROWS = "rows_match_source"
SIDES = "no_game_in_train_and_a_test"
LOSS = "loads_with_finite_loss"
CHANCE = "accuracy_beats_chance"
CLASSICAL = "accuracy_beats_hand_written"


def spec(name: str, asset: str, description: str, *, blocking: bool = True) -> dg.AssetCheckSpec:
    """Declare one check of an asset."""
    return dg.AssetCheckSpec(name, asset=asset, description=description, blocking=blocking)


POSITIONS = [
    spec(FILES, "positions", "The shards have the sizes, SHA-256 and rows that the manifest says; it names them all."),
    spec(SPLITS, "positions", "No game has positions in two splits."),
    spec(ROWS, "positions", "Random rows, replayed from the dump with python-chess, are the same."),
    spec(WHOLE, "positions", "The dump was read to its end, not only to where it is damaged.", blocking=False),
]
TRAINING_SET = [
    spec(
        SIDES, "training_set", "No game of train has the moves of one that is held out, in any dataset.", blocking=False
    )
]
CHECKPOINT = [spec(LOSS, "checkpoint", "The checkpoint loads, and its loss on stored rows is finite.")]
REPORT = [
    spec(CHANCE, "accuracy_report", "Top-1 is above that of a move drawn from the legal ones.", blocking=False),
    spec(CLASSICAL, "accuracy_report", "Top-1 is above that of the hand-written evaluator.", blocking=False),
]


def of_positions(found: Mapping[str, Any], wanted: int) -> list[dg.AssetCheckResult]:
    """Turn the answer of the `verify` task into results; damaged files are not read, and `wanted` rows were asked for."""
    files, compared = found["files"], found["compared"]
    unread = ["not looked at, because files are not what the manifest says"] if files else []
    none = ["no row was compared: none is in the dump's readable beginning"] if wanted and not compared else []
    return [
        _result("positions", FILES, files),
        _result("positions", SPLITS, unread or found["splits"]),
        _result("positions", ROWS, unread or found["rows"] or none, rows_compared=compared, rows_wanted=wanted),
        _result("positions", WHOLE, found["damage"], severity=dg.AssetCheckSeverity.WARN),
    ]


def of_training_set(page: Mapping[str, Any]) -> list[dg.AssetCheckResult]:
    """Turn a training set's page into a result; a warning, since short games are equal by chance."""
    counts = {name: count for name, count in page["games_on_both_sides"].items() if name != "examples"}
    problems = [f"{count} games of {name} have the moves of a game of train" for name, count in counts.items() if count]
    return [_result("training_set", SIDES, problems, severity=dg.AssetCheckSeverity.WARN, **counts)]


def of_checkpoint(probe: Mapping[str, Any]) -> list[dg.AssetCheckResult]:
    """Turn the answer of the `probe` task into a result."""
    loss = probe["loss"]
    values = {"rows": probe["rows"]} | ({} if loss is None else {"loss": loss})
    said = f"the loss is {'not finite' if loss is None else format(loss, '.4f')} on {probe['rows']} rows"
    passed = loss is not None
    return [
        dg.AssetCheckResult(asset_key="checkpoint", check_name=LOSS, passed=passed, description=said, metadata=values)
    ]


def of_report(figures: Mapping[str, float]) -> list[dg.AssetCheckResult]:
    """Compare top-1 with the baselines on the same rows; warnings, since a network of one minute may lose."""
    return [
        dg.AssetCheckResult(
            asset_key="accuracy_report",
            check_name=name,
            passed=figures["top1"] > figures[baseline],
            severity=dg.AssetCheckSeverity.WARN,
            description=f"top-1 is {figures['top1']:.4f}, {who} gets {figures[baseline]:.4f}",
            metadata={"top1": figures["top1"], "baseline": figures[baseline]},
        )
        for name, baseline, who in (
            (CHANCE, "chance_top1", "a move drawn from the legal ones"),
            (CLASSICAL, "hand_written_top1", "the hand-written evaluator"),
        )
    ]


def _result(
    asset: str,
    name: str,
    problems: Sequence[str],
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    **values: int,
) -> dg.AssetCheckResult:
    listed = dg.MetadataValue.md("\n".join(f"- {problem}" for problem in problems[:50]))
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=name,
        passed=not problems,
        severity=severity,
        description=problems[0] if problems else None,
        metadata={"problems_found": len(problems), **values, **({"problems": listed} if problems else {})},
    )
