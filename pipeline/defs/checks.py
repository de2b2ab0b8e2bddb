"""Checks of the assets: of stored files, which can be executed alone too, and of results.

A blocking check that fails keeps downstream assets from running, in its own run and in later ones
(`steps.require_no_failed_check`), until the asset is materialized again or the check passes.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import dagster as dg

from pipeline.dataset.dataset import Dataset
from pipeline.defs import child, tasks
from pipeline.defs.pages.metadata import PROBED
from pipeline.defs.resources import Datasets
from pipeline.defs.steps import (
    BLOCKING,
    TRAINED_ON,
    dumps,
    find_folder,
    materialized_dumps,
    report_user_errors,
)
from pipeline.finetune.state import NOTHING_PROMOTED
from pipeline.matches.match import format_elo
from pipeline.validation.verify import LIMIT, verify_dataset

FILES, SPLITS, ROWS = BLOCKING["positions"]
(LOSS,) = BLOCKING["checkpoint"]
WHOLE = "dump_read_to_its_end"
SIDES = "no_game_in_train_and_a_test"
CLASSICAL = "accuracy_beats_hand_written"
STRONGER = "stronger_than_supervised"
PERSONAL = "plays_more_like_the_player_than_the_base"
COMPARED = 64
"""Number of random rows that are replayed from the dump with python-chess."""
POSITIONS = {
    FILES: "The shards have the sizes, SHA-256 and rows of the manifest, which lists them all.",
    SPLITS: "No game has positions in two splits.",
    ROWS: "Random rows equal those replayed from the dump with python-chess.",
    WHOLE: "The dump was read to its end, without damage.",
}
with warnings.catch_warnings():
    warnings.simplefilter("ignore", dg.PreviewWarning)  # partitioned checks, which tests cover
    SPECS = [
        dg.AssetCheckSpec(
            name,
            asset="positions",
            description=text,
            blocking=name in BLOCKING["positions"],
            partitions_def=dumps,
        )
        for name, text in POSITIONS.items()
    ]
RESULTS = {
    "training_set": (SIDES, "No game in train has the same moves as a held-out game."),
    "accuracy_report": (CLASSICAL, "Top-1 is above that of the hand-written evaluator."),
    "tuned_checkpoint": (LOSS, "The best network loads, and its loss on positions is finite."),
    "strength_report": (STRONGER, "The lower bound of Elo against the supervised one is above 0."),
    "imitation": (PERSONAL, "On the newest games, the lower bound of the gain is above 0."),
}
"""The check of an asset's result, which the asset itself evaluates."""


def specs_of(asset: str) -> list[dg.AssetCheckSpec]:
    """Return the specification of the check of an asset's result."""
    name, text = RESULTS[asset]
    return [dg.AssetCheckSpec(name, asset=asset, description=text, blocking=name == LOSS)]


@dg.multi_asset_check(name="check_positions", specs=SPECS, can_subset=True, pool="processor")
def check_positions(
    context: dg.AssetCheckExecutionContext, datasets: Datasets
) -> Iterator[dg.AssetCheckResult | dg.AssetCheckEvaluation | dg.Output[None]]:
    """Verify the run's partition, or all materialized ones in a run without a partition."""
    op = context.op_execution_context
    selected = {check.name for check in op.selected_asset_check_keys}

    def verify(key: str) -> list[dg.AssetCheckResult]:
        return [it for it in _verify(datasets, key) if it.check_name in selected]

    if op.has_partition_key:
        yield from verify(op.partition_key)
        return
    for key in sorted(materialized_dumps(op.instance)):
        for result in verify(key):
            yield dg.AssetCheckEvaluation(
                dg.AssetKey("positions"),
                str(result.check_name),
                partition=key,
                blocking=result.check_name != WHOLE,
                passed=result.passed,
                severity=result.severity,
                metadata=result.metadata,
                description=result.description,
            )
    # Dagster makes these outputs from AssetCheckResults, which cannot name another partition.
    for check in sorted(op.selected_asset_check_keys):
        yield dg.Output(None, op.job_def.asset_layer.get_op_output_name(check) or check.name)


def _verify(datasets: Datasets, key: str) -> list[dg.AssetCheckResult]:
    """Return the results of one partition; no rows are compared if its dump has been deleted."""
    with report_user_errors():
        sources = [str(datasets.source(key))] if key in datasets.dumps() else []
        rows = COMPARED if sources else 0
        work = partial(verify_dataset, datasets.positions(key), sources, rows=rows, limit=LIMIT)
        return evaluate_positions(child.run_child(work), rows)


@dg.asset_check(
    asset="checkpoint",
    name=LOSS,
    blocking=True,
    pool="accelerator",
    description="The checkpoint loads, and its loss on stored positions is finite.",
)
def check_checkpoint(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Measure the checkpoint's loss on positions from its training set."""
    op = context.op_execution_context
    with report_user_errors():
        folder = find_folder(dg.AssetKey("checkpoint"), op.instance, op.run)
        joined = find_folder(dg.AssetKey("checkpoint"), op.instance, op.run, TRAINED_ON)
        measured = Dataset.open(joined).parts[0].path
        return evaluate_checkpoint(
            child.run_child(partial(tasks.probe, folder, measured, None, PROBED))
        )


def evaluate_positions(found: Mapping[str, Any], wanted: int) -> list[dg.AssetCheckResult]:
    """Return the results for the findings of `verify_dataset`, which compared `wanted` rows."""
    files, splits, rows, compared = (
        found[name] for name in ("files", "splits", "rows", "compared")
    )
    if files:
        splits = rows = ["not checked, because files differ from the manifest"]
    elif wanted and not compared and not rows:
        rows = ["no row was compared: none is in the readable part of the dump"]
    return [
        _list_problems(FILES, files),
        _list_problems(SPLITS, splits),
        _list_problems(ROWS, rows, rows_compared=compared, rows_wanted=wanted),
        _list_problems(WHOLE, found["damage"], warns=True),
    ]


def evaluate_training_set(page: Mapping[str, Any]) -> dg.AssetCheckResult:
    """Count games on both sides of a split; only a warning, because short games coincide."""
    counts = page["games_on_both_sides"]
    problems = [
        f"{count} games in {name} have the same moves as a game in train"
        for name, count in counts.items()
        if count
    ]
    return _list_problems(SIDES, problems, warns=True, **counts)


def evaluate_report(report: Mapping[str, Any]) -> dg.AssetCheckResult:
    """Compare top-1 with the baseline; only a warning, because a minute of training may lose."""
    top1, baseline = report["top1"], report["hand_written_top1"]
    message = f"top-1 is {top1:.4f}, the hand-written evaluator has {baseline:.4f}"
    return _result(CLASSICAL, top1 > baseline, message, top1=top1, baseline=baseline)


def evaluate_checkpoint(probe: Mapping[str, Any]) -> dg.AssetCheckResult:
    """Return the check result for the result of the task `probe`."""
    loss, rows = probe["loss"], probe["rows"]
    if not rows:
        message = "the loss was not measured: no sampled row has a known move"
        return _result(LOSS, True, message, warns=False, rows=0)
    message = f"the loss is {'not finite' if loss is None else format(loss, '.4f')} on {rows} rows"
    values = {"rows": rows} | ({} if loss is None else {"loss": loss})
    return _result(LOSS, loss is not None, message, warns=False, **values)


def evaluate_strength(row: Mapping[str, Any] | None) -> dg.AssetCheckResult:
    """Return the result for the match against the supervised checkpoint; None fails."""
    if row is None:
        return _result(STRONGER, False, NOTHING_PROMOTED)
    message = f"Elo {format_elo(row)} in {row['games']} games"
    return _result(STRONGER, (row["elo_low"] or 0.0) > 0, message, elo_low=row["elo_low"])


def evaluate_imitation(result: Mapping[str, Any]) -> dg.AssetCheckResult:
    """Return the check result for the report of an imitation."""
    (row,) = (row["all"] for row in result["networks"] if row["name"] == "imitation")
    low = row["top1_low"]
    values = {} if low is None else {"top1_difference": row["top1_difference"], "top1_low": low}
    return _result(PERSONAL, low is not None and low > 0, result["headline"], **values)


def _list_problems(
    name: str, problems: Sequence[str], *, warns: bool = False, **values: Any
) -> dg.AssetCheckResult:
    """Return a result that lists problems; it passes if there are none."""
    if problems:
        lines = "\n".join(f"- {problem}" for problem in problems[:50])
        values["problems"] = dg.MetadataValue.md(lines)
    first = problems[0] if problems else None
    return _result(name, not problems, first, warns=warns, problems_found=len(problems), **values)


def _result(
    name: str, passed: bool, message: str | None, *, warns: bool = True, **values: Any
) -> dg.AssetCheckResult:
    severity = dg.AssetCheckSeverity.WARN if warns else dg.AssetCheckSeverity.ERROR
    return dg.AssetCheckResult(
        check_name=name, passed=passed, severity=severity, description=message, metadata=values
    )
