"""Asset checks: some read stored files and can run alone, others evaluate an asset's result.

After a blocking check has failed, downstream assets do not run, neither in the same run nor in
later ones (`steps.require_no_failed_check`), until the check passes.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import dagster as dg

from pipeline.dataset.dataset import Dataset
from pipeline.defs import child, tasks
from pipeline.defs.pages.metadata import PROBE_ROWS
from pipeline.defs.resources import DataFolder
from pipeline.defs.steps import (
    BLOCKING_CHECKS,
    TRAINED_ON,
    dump_partitions,
    find_folder,
    list_materialized_dumps,
    report_user_errors,
)
from pipeline.finetune.state import NOTHING_PROMOTED
from pipeline.matches.match import format_elo
from pipeline.validation.verify import MAX_REPLAYED_BYTES, verify_dataset

FILES_CHECK, SPLITS_CHECK, ROWS_CHECK = BLOCKING_CHECKS["positions"]
(LOSS_CHECK,) = BLOCKING_CHECKS["checkpoint"]
DUMP_READ_CHECK = "dump_read_to_its_end"
SHARED_GAMES_CHECK = "no_game_in_train_and_a_test"
HAND_WRITTEN_CHECK = "accuracy_beats_hand_written"
STRENGTH_CHECK = "stronger_than_supervised"
IMITATION_CHECK = "plays_more_like_the_player_than_the_base"
NUM_COMPARED_ROWS = 64
"""Number of random rows to replay from the dump with python-chess."""
POSITION_CHECKS = {
    FILES_CHECK: "The files are those of the manifest, with the same sizes, hashes and rows.",
    SPLITS_CHECK: "All positions of a game are in the same split.",
    ROWS_CHECK: "Random rows match a replay of their games with python-chess.",
    DUMP_READ_CHECK: "The dump was read to the end, and is not damaged.",
}
with warnings.catch_warnings():
    # partitioned checks are a preview feature of Dagster; tests cover them
    warnings.simplefilter("ignore", dg.PreviewWarning)
    POSITION_SPECS = [
        dg.AssetCheckSpec(
            name,
            asset="positions",
            description=text,
            blocking=name in BLOCKING_CHECKS["positions"],
            partitions_def=dump_partitions,
        )
        for name, text in POSITION_CHECKS.items()
    ]
RESULT_CHECKS = {
    "training_set": (SHARED_GAMES_CHECK, "No game in train has the same moves as a held-out game."),
    "accuracy_report": (HAND_WRITTEN_CHECK, "Top-1 accuracy exceeds the hand-written evaluator's."),
    "tuned_checkpoint": (LOSS_CHECK, "The best network loads, and its loss is finite."),
    "strength_report": (STRENGTH_CHECK, "The lower bound of Elo against the start is above 0."),
    "imitation": (IMITATION_CHECK, "The lower bound of the top-1 gain over the base is above 0."),
}
"""Name and description of the check that an asset evaluates on its own result, by asset."""


def make_specs(asset: str) -> list[dg.AssetCheckSpec]:
    """Return the specification of an asset's check in RESULT_CHECKS, as a list of one."""
    name, text = RESULT_CHECKS[asset]
    return [dg.AssetCheckSpec(name, asset=asset, description=text, blocking=name == LOSS_CHECK)]


@dg.multi_asset_check(
    name="check_positions", specs=POSITION_SPECS, can_subset=True, pool="processor"
)
def check_positions(
    context: dg.AssetCheckExecutionContext, datasets: DataFolder
) -> Iterator[dg.AssetCheckEvaluation | dg.Output[None]]:
    """Verify the positions of the run's partition; without one, of all materialized partitions."""
    op = context.op_execution_context
    selected = {check.name for check in op.selected_asset_check_keys}
    keys = [op.partition_key] if op.has_partition_key else list_materialized_dumps(op.instance)
    failures = []
    for key in sorted(keys):
        try:
            results = verify_partition(datasets, key)
        except dg.Failure as failure:  # still verify the other partitions
            failures.append(f"{key}: {failure.description}")
            continue
        for result in results:
            if result.check_name in selected:
                yield to_evaluation(result, dg.AssetKey("positions"), key)
    if failures:
        raise dg.Failure("\n".join(failures), allow_retries=False)
    # Dagster requires an output for each check. It would create them from AssetCheckResults, but
    # those cannot name a partition.
    for check in sorted(op.selected_asset_check_keys):
        yield dg.Output(None, op.job_def.asset_layer.get_op_output_name(check) or check.name)


verify_all = dg.define_asset_job(
    "verify",
    dg.AssetSelection.checks_for_assets("positions"),
    description="Check all materialized positions: files, splits, and rows against their dumps.",
)
nightly_verify = dg.ScheduleDefinition(
    job=verify_all,
    cron_schedule="0 2 * * *",
    description="Check all materialized positions daily at 2:00 UTC. Later runs do not use "
    "positions that failed.",
)


def verify_partition(datasets: DataFolder, key: str) -> list[dg.AssetCheckResult]:
    """Verify the positions of one partition; rows are not compared if the dump was deleted."""
    with report_user_errors():
        sources = [str(datasets.find_dump(key))] if key in datasets.list_dumps() else []
        rows = NUM_COMPARED_ROWS if sources else 0
        work = partial(verify_dataset, datasets.result_folder("positions", key), sources, rows=rows)
        found = child.run_child(partial(work, limit=MAX_REPLAYED_BYTES))
        return evaluate_positions(found, rows)


@dg.asset_check(
    asset="checkpoint",
    name=LOSS_CHECK,
    blocking=True,
    pool="accelerator",
    description="The checkpoint can be loaded, and its loss on stored positions is finite.",
)
def check_checkpoint(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Check that the checkpoint's loss on positions of its training set is finite."""
    op = context.op_execution_context
    return probe_checkpoint(op.instance, op.run)


def probe_checkpoint(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.AssetCheckResult:
    """Check the loss of the checkpoint that this run materialized, or of the newest one."""
    with report_user_errors():
        folder = find_folder(dg.AssetKey("checkpoint"), instance, run)
        training_set = find_folder(dg.AssetKey("checkpoint"), instance, run, TRAINED_ON)
        dataset = Dataset.open(training_set).parts[0].path
        return evaluate_checkpoint(
            child.run_child(partial(tasks.probe, folder, dataset, None, PROBE_ROWS))
        )


def to_evaluation(
    result: dg.AssetCheckResult, asset: dg.AssetKey, partition: str | None = None
) -> dg.AssetCheckEvaluation:
    """Turn a check's result into an event with its asset and partition."""
    name = str(result.check_name)
    return dg.AssetCheckEvaluation(
        asset,
        name,
        partition=partition,
        blocking=name in BLOCKING_CHECKS.get(asset.to_user_string(), ()),
        passed=result.passed,
        severity=result.severity,
        metadata=result.metadata,
        description=result.description,
    )


def evaluate_positions(found: Mapping[str, Any], wanted: int) -> list[dg.AssetCheckResult]:
    """Turn the result of `verify_dataset`, asked to compare `wanted` rows, into check results."""
    files, splits, rows, compared = (
        found[name] for name in ("files", "splits", "rows", "compared")
    )
    if files:
        splits = rows = ["not checked, because files differ from the manifest"]
    elif wanted and not compared and not rows:
        rows = ["no rows were compared: none are in the readable part of the dump"]
    return [
        _report_problems(FILES_CHECK, files),
        _report_problems(SPLITS_CHECK, splits),
        _report_problems(ROWS_CHECK, rows, rows_compared=compared, rows_wanted=wanted),
        _report_problems(DUMP_READ_CHECK, found["damage"], warns=True),
    ]


def evaluate_training_set(page: Mapping[str, Any]) -> dg.AssetCheckResult:
    """Warn about games that occur in both train and a held-out split.

    This is not an error, because short games often have the same moves.
    """
    counts = page["games_on_both_sides"]
    problems = [
        f"{count} games in {name} have the same moves as a game in train"
        for name, count in counts.items()
        if count
    ]
    return _report_problems(SHARED_GAMES_CHECK, problems, warns=True, **counts)


def evaluate_report(report: Mapping[str, Any]) -> dg.AssetCheckResult:
    """Warn if top-1 accuracy is not above that of the hand-written evaluator.

    This is not an error, because a network that was trained for a minute may be worse.
    """
    top1, baseline = report["top1"], report["hand_written_top1"]
    message = f"top-1 is {top1:.4f}, the hand-written evaluator has {baseline:.4f}"
    return _make_result(HAND_WRITTEN_CHECK, top1 > baseline, message, top1=top1, baseline=baseline)


def evaluate_checkpoint(probe: Mapping[str, Any]) -> dg.AssetCheckResult:
    """Check that the loss measured by `tasks.probe` is finite, or that no row could be measured."""
    loss, rows = probe["loss"], probe["rows"]
    if not rows:
        message = "the loss was not measured: no sampled row has a move"
        return _make_result(LOSS_CHECK, True, message, warns=False, rows=0)
    message = f"the loss is {'not finite' if loss is None else format(loss, '.4f')} on {rows} rows"
    values = {"rows": rows} | ({} if loss is None else {"loss": loss})
    return _make_result(LOSS_CHECK, loss is not None, message, warns=False, **values)


def evaluate_strength(row: Mapping[str, Any] | None) -> dg.AssetCheckResult:
    """Check that the lower Elo bound of a match against the supervised checkpoint is above 0.

    Without a match (None), the check fails.
    """
    if row is None:
        return _make_result(STRENGTH_CHECK, False, NOTHING_PROMOTED)
    message = f"Elo {format_elo(row)} in {row['games']} games"
    return _make_result(
        STRENGTH_CHECK, (row["elo_low"] or 0.0) > 0, message, elo_low=row["elo_low"]
    )


def evaluate_imitation(result: Mapping[str, Any]) -> dg.AssetCheckResult:
    """Check that the lower bound of an imitation's gain in top-1 is above 0."""
    (row,) = (row["all"] for row in result["networks"] if row["name"] == "imitation")
    low = row["top1_low"]
    values = {} if low is None else {"top1_difference": row["top1_difference"], "top1_low": low}
    return _make_result(IMITATION_CHECK, low is not None and low > 0, result["headline"], **values)


def _report_problems(
    name: str, problems: Sequence[str], *, warns: bool = False, **values: Any
) -> dg.AssetCheckResult:
    """Return a check result that lists the problems and passes if there are none."""
    if problems:
        lines = "\n".join(f"- {problem}" for problem in problems[:50])
        values["problems"] = dg.MetadataValue.md(lines)
    first = problems[0] if problems else None
    return _make_result(
        name, not problems, first, warns=warns, problems_found=len(problems), **values
    )


def _make_result(
    name: str, passed: bool, message: str | None, *, warns: bool = True, **values: Any
) -> dg.AssetCheckResult:
    severity = dg.AssetCheckSeverity.WARN if warns else dg.AssetCheckSeverity.ERROR
    return dg.AssetCheckResult(
        check_name=name, passed=passed, severity=severity, description=message, metadata=values
    )
