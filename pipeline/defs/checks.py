"""Asset checks: some read stored files and can run alone, others evaluate an asset's result.

A failed blocking check keeps downstream assets from running, in the same run and in later ones
(`steps.require_no_failed_check`), until the asset is materialized again or the check passes.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import dagster as dg

from pipeline.dataset.dataset import Dataset
from pipeline.defs import child, tasks
from pipeline.defs.pages.metadata import PROBE_ROWS
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
from pipeline.validation.verify import MAX_REPLAYED_BYTES, verify_dataset

FILES, SPLITS, ROWS = BLOCKING["positions"]
(LOSS,) = BLOCKING["checkpoint"]
IS_READ_TO_END = "dump_read_to_its_end"
NO_GAME_ON_BOTH_SIDES = "no_game_in_train_and_a_test"
BEATS_HAND_WRITTEN = "accuracy_beats_hand_written"
BEATS_SUPERVISED = "stronger_than_supervised"
BEATS_BASE = "plays_more_like_the_player_than_the_base"
COMPARED_ROWS = 64
"""Number of random rows to replay from the dump with python-chess."""
POSITIONS = {
    FILES: "All shards are in the manifest, and their sizes, SHA-256 hashes and rows match it.",
    SPLITS: "No game has positions in two splits.",
    ROWS: "Random rows match a replay of the dump with python-chess.",
    IS_READ_TO_END: "The dump was read to the end and is not damaged.",
}
with warnings.catch_warnings():
    # partitioned checks are a preview feature; tests cover them
    warnings.simplefilter("ignore", dg.PreviewWarning)
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
    "training_set": (
        NO_GAME_ON_BOTH_SIDES,
        "No game in train has the same moves as a held-out game.",
    ),
    "accuracy_report": (
        BEATS_HAND_WRITTEN,
        "Top-1 accuracy is higher than the hand-written evaluator's.",
    ),
    "tuned_checkpoint": (
        LOSS,
        "The best network loads, and its loss on stored positions is finite.",
    ),
    "strength_report": (
        BEATS_SUPERVISED,
        "The lower bound of Elo against the supervised network is above 0.",
    ),
    "imitation": (BEATS_BASE, "The lower bound of the top-1 gain on the newest games is above 0."),
}
"""Checks that an asset evaluates on its own result: asset -> (name, description)."""


def make_specs(asset: str) -> list[dg.AssetCheckSpec]:
    """Return the specification of the check that an asset evaluates on its result."""
    name, text = RESULTS[asset]
    return [dg.AssetCheckSpec(name, asset=asset, description=text, blocking=name == LOSS)]


@dg.multi_asset_check(name="check_positions", specs=SPECS, can_subset=True, pool="processor")
def check_positions(
    context: dg.AssetCheckExecutionContext, datasets: Datasets
) -> Iterator[dg.AssetCheckEvaluation | dg.Output[None]]:
    """Verify the run's partition; without one, verify all materialized partitions."""
    op = context.op_execution_context
    selected = {check.name for check in op.selected_asset_check_keys}
    keys = [op.partition_key] if op.has_partition_key else materialized_dumps(op.instance)
    failures = []
    for key in sorted(keys):
        try:
            results = verify(datasets, key)
        except dg.Failure as failure:  # still verify the other partitions
            failures.append(f"{key}: {failure.description}")
            continue
        for result in results:
            if result.check_name in selected:
                yield to_evaluation(result, dg.AssetKey("positions"), key)
    if failures:
        raise dg.Failure("\n".join(failures), allow_retries=False)
    # Dagster creates these outputs from AssetCheckResults only, which cannot name a partition.
    for check in sorted(op.selected_asset_check_keys):
        yield dg.Output(None, op.job_def.asset_layer.get_op_output_name(check) or check.name)


verify_all = dg.define_asset_job(
    "verify",
    dg.AssetSelection.checks_for_assets("positions"),
    description="Check all materialized positions against their manifests and dumps.",
)
nightly_verify = dg.ScheduleDefinition(
    job=verify_all,
    cron_schedule="0 2 * * *",
    description="Check all positions daily at 2:00 UTC. Runs do not use positions that failed a "
    "blocking check.",
)


def verify(datasets: Datasets, key: str) -> list[dg.AssetCheckResult]:
    """Verify one partition; skip the comparison of rows if its dump has been deleted."""
    with report_user_errors():
        sources = [str(datasets.source(key))] if key in datasets.dumps() else []
        rows = COMPARED_ROWS if sources else 0
        work = partial(verify_dataset, datasets.folder("positions", key), sources, rows=rows)
        found = child.run_child(partial(work, limit=MAX_REPLAYED_BYTES))
        return evaluate_positions(found, rows)


@dg.asset_check(
    asset="checkpoint",
    name=LOSS,
    blocking=True,
    pool="accelerator",
    description="The checkpoint loads, and its loss on stored positions is finite.",
)
def check_checkpoint(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Check that the checkpoint's loss on positions from its training set is finite."""
    op = context.op_execution_context
    return probe_checkpoint(op.instance, op.run)


def probe_checkpoint(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.AssetCheckResult:
    """Measure the loss of the checkpoint that `find_folder` returns."""
    with report_user_errors():
        folder = find_folder(dg.AssetKey("checkpoint"), instance, run)
        joined = find_folder(dg.AssetKey("checkpoint"), instance, run, TRAINED_ON)
        measured = Dataset.open(joined).parts[0].path
        return evaluate_checkpoint(
            child.run_child(partial(tasks.probe, folder, measured, None, PROBE_ROWS))
        )


def to_evaluation(
    result: dg.AssetCheckResult, asset: dg.AssetKey, partition: str | None = None
) -> dg.AssetCheckEvaluation:
    """Return a check's result as the event that names its asset and partition."""
    name = str(result.check_name)
    return dg.AssetCheckEvaluation(
        asset,
        name,
        partition=partition,
        blocking=name in BLOCKING.get(asset.to_user_string(), ()),
        passed=result.passed,
        severity=result.severity,
        metadata=result.metadata,
        description=result.description,
    )


def evaluate_positions(found: Mapping[str, Any], wanted: int) -> list[dg.AssetCheckResult]:
    """Turn the result of `verify_dataset` into check results; `wanted` rows were to be compared."""
    files, splits, rows, compared = (
        found[name] for name in ("files", "splits", "rows", "compared")
    )
    if files:
        splits = rows = ["not checked, because files differ from the manifest"]
    elif wanted and not compared and not rows:
        rows = ["no row was compared: none of them is in the readable part of the dump"]
    return [
        _list_problems(FILES, files),
        _list_problems(SPLITS, splits),
        _list_problems(ROWS, rows, rows_compared=compared, rows_wanted=wanted),
        _list_problems(IS_READ_TO_END, found["damage"], warns=True),
    ]


def evaluate_training_set(page: Mapping[str, Any]) -> dg.AssetCheckResult:
    """Warn about games that occur in both train and a held-out split.

    Not an error, because short games often have the same moves.
    """
    counts = page["games_on_both_sides"]
    problems = [
        f"{count} games in {name} have the same moves as a game in train"
        for name, count in counts.items()
        if count
    ]
    return _list_problems(NO_GAME_ON_BOTH_SIDES, problems, warns=True, **counts)


def evaluate_report(report: Mapping[str, Any]) -> dg.AssetCheckResult:
    """Warn if top-1 accuracy is below the hand-written baseline.

    Not an error, because a network trained for a minute may be worse.
    """
    top1, baseline = report["top1"], report["hand_written_top1"]
    message = f"top-1 is {top1:.4f}, the hand-written evaluator has {baseline:.4f}"
    return _result(BEATS_HAND_WRITTEN, top1 > baseline, message, top1=top1, baseline=baseline)


def evaluate_checkpoint(probe: Mapping[str, Any]) -> dg.AssetCheckResult:
    """Return the check result for the output of `tasks.probe`."""
    loss, rows = probe["loss"], probe["rows"]
    if not rows:
        message = "the loss was not measured: no sampled row has a known move"
        return _result(LOSS, True, message, warns=False, rows=0)
    message = f"the loss is {'not finite' if loss is None else format(loss, '.4f')} on {rows} rows"
    values = {"rows": rows} | ({} if loss is None else {"loss": loss})
    return _result(LOSS, loss is not None, message, warns=False, **values)


def evaluate_strength(row: Mapping[str, Any] | None) -> dg.AssetCheckResult:
    """Return the check result for a match against the supervised checkpoint.

    The check fails if `row` is None.
    """
    if row is None:
        return _result(BEATS_SUPERVISED, False, NOTHING_PROMOTED)
    message = f"Elo {format_elo(row)} in {row['games']} games"
    return _result(BEATS_SUPERVISED, (row["elo_low"] or 0.0) > 0, message, elo_low=row["elo_low"])


def evaluate_imitation(result: Mapping[str, Any]) -> dg.AssetCheckResult:
    """Return the check result for an imitation's report."""
    (row,) = (row["all"] for row in result["networks"] if row["name"] == "imitation")
    low = row["top1_low"]
    values = {} if low is None else {"top1_difference": row["top1_difference"], "top1_low": low}
    return _result(BEATS_BASE, low is not None and low > 0, result["headline"], **values)


def _list_problems(
    name: str, problems: Sequence[str], *, warns: bool = False, **values: Any
) -> dg.AssetCheckResult:
    """Return a check result that lists the problems and passes if there are none."""
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
