"""Checks of the assets. A check runs after its asset, or alone: from its page, or by the job `verify`.

A blocking check that fails keeps downstream assets from running, in its own run and in later ones
(`launchpad.look_ahead.require_no_failed_check`), until the asset is materialized again or the check passes.
"""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import dagster as dg

from pipeline.dataset.training_set import members, read_training_set
from pipeline.defs import tasks
from pipeline.defs.assets import (
    TRAINED_ON,
    accuracy_report,
    checkpoint,
    dumps,
    find_folder,
    positions,
    report_user_errors,
    training_set,
)
from pipeline.defs.child import run_child
from pipeline.defs.launchpad.forms import Form, read_form
from pipeline.defs.launchpad.look_ahead import BLOCKING, find_last_checks, materialized_dumps
from pipeline.defs.launchpad.options import VerifyOptions
from pipeline.defs.pages.metadata import PROBED, average
from pipeline.defs.resources import Datasets
from pipeline.finetune.state import NOTHING_PROMOTED
from pipeline.validation.verify import LIMIT, verify_dataset

FILES, SPLITS, ROWS = BLOCKING["positions"]
(LOSS,) = BLOCKING["checkpoint"]
WHOLE = "dump_read_to_its_end"
SIDES = "no_game_in_train_and_a_test"
USED = "every_materialized_partition_is_used"
CHANCE = "accuracy_beats_chance"
CLASSICAL = "accuracy_beats_hand_written"
NOT_WORSE = "not_weaker_than_supervised"
REMEMBERS = "human_top1_kept"
STRONGER = "stronger_than_supervised"


def specs(
    asset: str, descriptions: Mapping[str, str], by: dg.PartitionsDefinition[str] | None = None
) -> list[dg.AssetCheckSpec]:
    """Return the specs of an asset's checks, by name and description; those in BLOCKING block."""
    blocking = (*BLOCKING["positions"], LOSS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)  # partitioned checks, which tests cover
        return [
            dg.AssetCheckSpec(name, asset=asset, description=text, blocking=name in blocking, partitions_def=by)
            for name, text in descriptions.items()
        ]


POSITIONS = {
    FILES: "The shards have the sizes, SHA-256 and rows of the manifest, which lists them all.",
    SPLITS: "No game has positions in two splits.",
    ROWS: "Random rows equal those replayed from the dump with python-chess.",
    WHOLE: "The dump was read to its end, without damage.",
}
TRAINING_SET = {
    SIDES: "No game in train has the same moves as a held-out game, in any dataset.",
    USED: "The training set contains the positions of every materialized partition.",
}
REPORT = {
    CHANCE: "Top-1 is above that of random legal moves.",
    CLASSICAL: "Top-1 is above that of the hand-written evaluator.",
}
TUNED = specs(
    "tuned_checkpoint",
    {
        LOSS: "The best network loads, and its loss on stored positions is finite.",
        NOT_WORSE: "The match against the supervised checkpoint was not lost.",
        REMEMBERS: "Top-1 on human games fell by no more than `eval.max_top1_drop`.",
    },
)
STRENGTH = specs("strength_report", {STRONGER: "The lower bound of Elo against the supervised checkpoint is above 0."})
Results = Iterator[dg.AssetCheckResult]
FIELDS = ("passed", "severity", "metadata", "description")


@dg.multi_asset_check(
    name="check_positions", specs=specs("positions", POSITIONS, dumps), can_subset=True, pool="processor"
)
def check_positions(
    context: dg.AssetCheckExecutionContext, config: Form[VerifyOptions], datasets: Datasets
) -> Iterator[dg.AssetCheckResult | dg.AssetCheckEvaluation | dg.Output[None]]:
    """Verify the run's partition against its manifest and the dump; in a run without partition, those checked longest ago."""
    op, options = context.op_execution_context, read_form(config)
    if op.has_partition_key:
        yield from select(context, _verify(datasets, op.partition_key, options.rows))
        return
    for key in order_by_last_check(op.instance)[: options.most]:
        for result in select(context, _verify(datasets, key, options.rows)):
            name, values = str(result.check_name), {each: getattr(result, each) for each in FIELDS}
            yield dg.AssetCheckEvaluation(positions.key, name, partition=key, blocking=name != WHOLE, **values)
    # An AssetCheckResult, from which Dagster makes these outputs, cannot name another partition than the run's.
    for check in sorted(op.selected_asset_check_keys):
        yield dg.Output(None, op.job_def.asset_layer.get_op_output_name(check) or check.name)


def select(context: dg.AssetCheckExecutionContext, results: list[dg.AssetCheckResult]) -> Results:
    """Yield the results of the checks that the run selects: each can be executed alone, from the asset's page."""
    names = {check.name for check in context.op_execution_context.selected_asset_check_keys}
    yield from (result for result in results if result.check_name in names)


def _verify(datasets: Datasets, key: str, rows: int) -> list[dg.AssetCheckResult]:
    """Return the results of one partition; no rows are compared if its dump has been deleted."""
    with report_user_errors():
        source = datasets.source(key) if key in datasets.dumps() else None
        rows = rows if source else 0
        work = partial(verify_dataset, datasets.positions(key), [str(source)] if source else [])
        return judge_positions(run_child(partial(work, rows=rows, limit=LIMIT)), rows)


def order_by_last_check(instance: dg.DagsterInstance) -> list[str]:
    """Return the dumps whose positions are materialized, the most recently checked last."""
    last = find_last_checks(instance, positions.key, FILES)
    keys = sorted(materialized_dumps(instance))
    return sorted(keys, key=lambda key: last[key].create_timestamp if key in last else 0.0)


@dg.multi_asset_check(name="check_training_set", specs=specs("training_set", TRAINING_SET), can_subset=True)
def check_training_set(context: dg.AssetCheckExecutionContext) -> Results:
    """Check the description of the training set."""
    op = context.op_execution_context
    with report_user_errors():
        page = read_training_set(find_folder(training_set.key, op.instance, op.run))
    yield from select(context, judge_training_set(page, materialized_dumps(op.instance)))


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
        folder, joined = (find_folder(checkpoint.key, op.instance, op.run, name) for name in ("path", TRAINED_ON))
        probe = run_child(partial(tasks.probe, folder, members(joined)[0].directory, None, PROBED))
    return judge_checkpoint(probe)


@dg.multi_asset_check(name="check_report", specs=specs("accuracy_report", REPORT), can_subset=True)
def check_report(context: dg.AssetCheckExecutionContext) -> Results:
    """Compare the report's figures with its baselines."""
    op = context.op_execution_context
    with report_user_errors():
        folder = find_folder(accuracy_report.key, op.instance, op.run)
        event = op.instance.get_latest_materialization_event(accuracy_report.key)
        assert event is not None
        assert event.asset_materialization is not None
        named = [record.data["dataset"] for record in event.asset_materialization.metadata["datasets"].value.records]  # type: ignore[union-attr]
        reports = {name: json.loads((folder / name / "report.json").read_bytes()) for name in named}
    yield from select(context, judge_report(average(reports)))


def judge_positions(found: Mapping[str, Any], wanted: int) -> list[dg.AssetCheckResult]:
    """Return the check results for the result of `verify_dataset`, which was asked to compare `wanted` rows."""
    files, compared = found["files"], found["compared"]
    unread = ["not checked, because files differ from the manifest"] if files else []
    none = ["no row was compared: none is in the readable part of the dump"] if wanted and not compared else []
    return [
        _listed("positions", FILES, files),
        _listed("positions", SPLITS, unread or found["splits"]),
        _listed("positions", ROWS, unread or found["rows"] or none, rows_compared=compared, rows_wanted=wanted),
        _listed("positions", WHOLE, found["damage"], warns=True),
    ]


def judge_training_set(page: Mapping[str, Any], materialised: set[str]) -> list[dg.AssetCheckResult]:
    """Return the check results for the description of a training set; warnings, since short games coincide."""
    counts = {name: count for name, count in page["games_on_both_sides"].items() if name != "examples"}
    problems = [
        f"{count} games in {name} have the same moves as a game in train" for name, count in counts.items() if count
    ]
    unused = sorted(materialised - {entry["name"] for entry in page["datasets"]})
    return [
        _listed("training_set", SIDES, problems, warns=True, **counts),
        _listed(
            "training_set", USED, [f"{name} is materialized but not in the training set" for name in unused], warns=True
        ),
    ]


def judge_checkpoint(probe: Mapping[str, Any], asset: str = "checkpoint") -> dg.AssetCheckResult:
    """Return the check result for the result of the task `probe`."""
    loss = probe["loss"]
    said = f"the loss is {'not finite' if loss is None else format(loss, '.4f')} on {probe['rows']} rows"
    values = {"rows": probe["rows"]} | ({} if loss is None else {"loss": loss})
    return _result(asset, LOSS, loss is not None, said, warns=False, **values)


def judge_report(figures: Mapping[str, float]) -> list[dg.AssetCheckResult]:
    """Compare top-1 with the baselines on the same positions; warnings, since a network trained for a minute may lose."""
    top1, asset = figures["top1"], "accuracy_report"
    return [
        _result(
            asset,
            name,
            top1 > other,
            f"top-1 is {top1:.4f}, {who} has {other:.4f}",
            top1=top1,
            baseline=other,
        )
        for name, other, who in (
            (CHANCE, figures["chance_top1"], "a random legal move"),
            (CLASSICAL, figures["hand_written_top1"], "the hand-written evaluator"),
        )
    ]


def judge_tuned(result: Mapping[str, Any], allowed: float, probe: Mapping[str, Any]) -> list[dg.AssetCheckResult]:
    """Return the check results for a fine-tuning; if nothing was promoted, the supervised checkpoint is its own equal."""
    match, before, after = result["against_seed"], result["seed_eval"].get("top1"), result["eval"].get("top1")
    score = 0.5 if match is None else match["score"]
    fall = 0.0 if before is None or after is None else before - after
    played = "nothing was promoted" if match is None else f"score {score:.3f} in {match['games']} games"
    kept = "no human games were measured" if before is None else f"top-1 was {before:.4f} and is {after:.4f}"
    return [
        judge_checkpoint(probe, "tuned_checkpoint"),
        _result("tuned_checkpoint", NOT_WORSE, score >= 0.5, played, score=score),
        _result("tuned_checkpoint", REMEMBERS, fall <= allowed, kept, fall=fall, allowed=allowed),
    ]


def judge_strength(row: Mapping[str, Any] | None) -> list[dg.AssetCheckResult]:
    """Return the check result for the match against the supervised checkpoint; None, if nothing was promoted, fails."""
    if row is None:
        return [_result("strength_report", STRONGER, False, NOTHING_PROMOTED)]
    said = f"Elo {row['elo']:+.0f} [{row['elo_low']:+.0f}, {row['elo_high']:+.0f}] in {row['games']} games"
    return [_result("strength_report", STRONGER, row["elo_low"] > 0, said, elo=row["elo"], elo_low=row["elo_low"])]


def _listed(
    asset: str, name: str, problems: Sequence[str], *, warns: bool = False, **values: int
) -> dg.AssetCheckResult:
    """Return a result that lists problems; it passes if there are none."""
    listed = (
        {"problems": dg.MetadataValue.md("\n".join(f"- {problem}" for problem in problems[:50]))} if problems else {}
    )
    first = problems[0] if problems else None
    return _result(asset, name, not problems, first, warns=warns, problems_found=len(problems), **values, **listed)


def _result(
    asset: str, name: str, passed: bool, said: str | None, *, warns: bool = True, **values: Any
) -> dg.AssetCheckResult:
    severity = dg.AssetCheckSeverity.WARN if warns else dg.AssetCheckSeverity.ERROR
    return dg.AssetCheckResult(
        asset_key=asset, check_name=name, passed=passed, severity=severity, description=said, metadata=values
    )
