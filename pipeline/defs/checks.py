"""What each asset promises about itself; a broken blocking promise keeps everything downstream from running."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from pipeline.finetune.state import NOTHING_PROMOTED

FILES = "files_match_manifest"
SPLITS = "no_game_in_two_splits"
WHOLE = "dump_read_to_its_end"
ROWS = "rows_match_source"
SIDES = "no_game_in_train_and_a_test"
LOSS = "loads_with_finite_loss"
CHANCE = "accuracy_beats_chance"
CLASSICAL = "accuracy_beats_hand_written"
NOT_WORSE = "not_weaker_than_its_seed"
REMEMBERS = "human_top1_kept"
STRONGER = "stronger_than_its_seed"


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
TUNED = [
    spec(LOSS, "tuned_checkpoint", "The best network loads, and its loss on stored rows is finite."),
    spec(NOT_WORSE, "tuned_checkpoint", "Its match with the seed was not lost.", blocking=False),
    spec(REMEMBERS, "tuned_checkpoint", "Human top-1 has not fallen by more than is allowed.", blocking=False),
]
STRENGTH = [
    spec(
        STRONGER, "strength_report", "Elo against the seed is above 0 at the lower end of its interval.", blocking=False
    )
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


def of_checkpoint(probe: Mapping[str, Any], asset: str = "checkpoint") -> list[dg.AssetCheckResult]:
    """Turn the answer of the `probe` task into a result."""
    loss = probe["loss"]
    values = {"rows": probe["rows"]} | ({} if loss is None else {"loss": loss})
    said = f"the loss is {'not finite' if loss is None else format(loss, '.4f')} on {probe['rows']} rows"
    passed = loss is not None
    return [dg.AssetCheckResult(asset_key=asset, check_name=LOSS, passed=passed, description=said, metadata=values)]


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


def of_tuned(result: Mapping[str, Any], allowed: float, probe: Mapping[str, Any]) -> list[dg.AssetCheckResult]:
    """Judge the best network of a loop by what the loop found; a seed that nothing has beaten is as good as itself."""
    match, before, after = result["against_seed"], result["seed_eval"].get("top1"), result["eval"].get("top1")
    score = 0.5 if match is None else match["score"]
    fall = 0.0 if before is None or after is None else before - after
    met = "it is the seed" if match is None else f"the seed was met {match['games']} times, score {score:.3f}"
    kept = "nothing human was measured" if before is None else f"top-1 was {before:.4f} and is {after:.4f}"
    return [
        *of_checkpoint(probe, "tuned_checkpoint"),
        _warning("tuned_checkpoint", NOT_WORSE, score >= 0.5, met, score=score),
        _warning("tuned_checkpoint", REMEMBERS, fall <= allowed, kept, fall=fall, allowed=allowed),
    ]


def of_strength(row: Mapping[str, Any] | None) -> list[dg.AssetCheckResult]:
    """Judge the match with the seed, a row of the ladder; None where nothing was promoted, which is no strength won."""
    if row is None:
        return [_warning("strength_report", STRONGER, False, NOTHING_PROMOTED)]
    said = f"Elo {row['elo']:+.0f} [{row['elo_low']:+.0f}, {row['elo_high']:+.0f}] in {row['games']} games"
    return [_warning("strength_report", STRONGER, row["elo_low"] > 0, said, elo=row["elo"], elo_low=row["elo_low"])]


def _warning(asset: str, name: str, passed: bool, said: str, **values: float) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=name,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=said,
        metadata=values,
    )


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
