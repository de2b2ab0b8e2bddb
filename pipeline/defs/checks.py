"""What each asset promises about itself. A check runs after its asset, or alone: from its page, or by the job `verify`.

A check that blocks and fails keeps everything downstream from running, in its own run and in later ones
(`launchpad.look_ahead.forbidden`), until the asset is materialised again or the check passes.
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
    folder_of,
    plainly,
    positions,
    training_set,
)
from pipeline.defs.child import run_child
from pipeline.defs.launchpad.forms import Form, options_of
from pipeline.defs.launchpad.look_ahead import BLOCKING, last_checks, promised
from pipeline.defs.launchpad.options import VerifyOptions
from pipeline.defs.pages.metadata import PROBED, overall
from pipeline.defs.resources import Datasets
from pipeline.finetune.state import NOTHING_PROMOTED

FILES, SPLITS, ROWS = BLOCKING["positions"]
(LOSS,) = BLOCKING["checkpoint"]
WHOLE = "dump_read_to_its_end"
SIDES = "no_game_in_train_and_a_test"
USED = "every_materialised_partition_is_used"
CHANCE = "accuracy_beats_chance"
CLASSICAL = "accuracy_beats_hand_written"
NOT_WORSE = "not_weaker_than_its_seed"
REMEMBERS = "human_top1_kept"
STRONGER = "stronger_than_its_seed"


def specs(
    asset: str, descriptions: Mapping[str, str], by: dg.PartitionsDefinition[str] | None = None
) -> list[dg.AssetCheckSpec]:
    """Declare the checks of an asset, by name and description; those of BLOCKING block."""
    blocking = (*BLOCKING["positions"], LOSS)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", dg.PreviewWarning
        )  # partitions of checks: tests hold them, and the version is pinned
        return [
            dg.AssetCheckSpec(name, asset=asset, description=text, blocking=name in blocking, partitions_def=by)
            for name, text in descriptions.items()
        ]


POSITIONS = {
    FILES: "The shards have the sizes, SHA-256 and rows that the manifest says; it names them all.",
    SPLITS: "No game has positions in two splits.",
    ROWS: "Random rows, replayed from the dump with python-chess, are the same.",
    WHOLE: "The dump was read to its end, not only to where it is damaged.",
}
TRAINING_SET = {
    SIDES: "No game of train has the moves of one that is held out, in any dataset.",
    USED: "The training set holds the positions of every dump that are materialised.",
}
REPORT = {
    CHANCE: "Top-1 is above that of a move drawn from the legal ones.",
    CLASSICAL: "Top-1 is above that of the hand-written evaluator.",
}
TUNED = specs(
    "tuned_checkpoint",
    {
        LOSS: "The best network loads, and its loss on stored rows is finite.",
        NOT_WORSE: "Its match with the seed was not lost.",
        REMEMBERS: "Human top-1 has not fallen by more than is allowed.",
    },
)
STRENGTH = specs("strength_report", {STRONGER: "Elo against the seed is above 0 at the lower end of its interval."})
Results = Iterator[dg.AssetCheckResult]
SAID = ("passed", "severity", "metadata", "description")


@dg.multi_asset_check(
    name="check_positions", specs=specs("positions", POSITIONS, dumps), can_subset=True, pool="processor"
)
def check_positions(
    context: dg.AssetCheckExecutionContext, config: Form[VerifyOptions], datasets: Datasets
) -> Iterator[dg.AssetCheckResult | dg.AssetCheckEvaluation | dg.Output[None]]:
    """Compare the files of the run's partition with its manifest and with the dump; those of several in a run of none."""
    op, options = context.op_execution_context, options_of(config)
    if op.has_partition_key:
        yield from wanted(context, _verified(datasets, op.partition_key, options.rows))
        return
    for key in not_checked_for_longest(op.instance)[: options.most]:
        for result in wanted(context, _verified(datasets, key, options.rows)):
            name, values = str(result.check_name), {each: getattr(result, each) for each in SAID}
            yield dg.AssetCheckEvaluation(positions.key, name, partition=key, blocking=name != WHOLE, **values)
    # Dagster makes these of an AssetCheckResult, which cannot name another partition than the run's
    for check in sorted(op.selected_asset_check_keys):
        yield dg.Output(None, op.job_def.asset_layer.get_op_output_name(check) or check.name)


def wanted(context: dg.AssetCheckExecutionContext, results: list[dg.AssetCheckResult]) -> Results:
    """Yield the results of the checks that the run is for: each can be executed by itself, from the asset's page."""
    names = {check.name for check in context.op_execution_context.selected_asset_check_keys}
    yield from (result for result in results if result.check_name in names)


def _verified(datasets: Datasets, key: str, rows: int) -> list[dg.AssetCheckResult]:
    """Return the results of one partition; where its dump was deleted since, no rows are compared."""
    with plainly():
        source = datasets.source(key) if key in datasets.dumps() else None
        rows = rows if source else 0
        return of_positions(run_child(partial(tasks.verify, datasets.positions(key), source, rows)), rows)


def not_checked_for_longest(instance: dg.DagsterInstance) -> list[str]:
    """Return the dumps whose positions are materialised, the one whose files were checked last at the end."""
    when = {}
    for key in promised(instance):
        found = last_checks(instance, positions.key, key).values()
        when[key] = max((record.create_timestamp for record in found), default=0.0)
    return sorted(when, key=lambda key: (when[key], key))


@dg.multi_asset_check(name="check_training_set", specs=specs("training_set", TRAINING_SET), can_subset=True)
def check_training_set(context: dg.AssetCheckExecutionContext) -> Results:
    """Read what the training set says of itself."""
    op = context.op_execution_context
    with plainly():
        page = read_training_set(folder_of(training_set.key, op.instance, op.run))
    yield from wanted(context, of_training_set(page, promised(op.instance)))


@dg.asset_check(
    asset="checkpoint",
    name=LOSS,
    blocking=True,
    pool="accelerator",
    description="The checkpoint loads, and its loss on stored rows is finite.",
)
def check_checkpoint(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """Load the checkpoint and measure it on rows that it was trained with."""
    op = context.op_execution_context
    with plainly():
        folder, joined = (folder_of(checkpoint.key, op.instance, op.run, name) for name in ("path", TRAINED_ON))
        probe = run_child(partial(tasks.probe, folder, members(joined)[0].directory, None, PROBED))
    return of_checkpoint(probe)


@dg.multi_asset_check(name="check_report", specs=specs("accuracy_report", REPORT), can_subset=True)
def check_report(context: dg.AssetCheckExecutionContext) -> Results:
    """Compare the report's figures with its baselines."""
    op = context.op_execution_context
    with plainly():
        folder = folder_of(accuracy_report.key, op.instance, op.run)
        event = op.instance.get_latest_materialization_event(accuracy_report.key)
        assert event is not None
        assert event.asset_materialization is not None
        named = [record.data["dataset"] for record in event.asset_materialization.metadata["datasets"].value.records]  # type: ignore[union-attr]
        reports = {name: json.loads((folder / name / "report.json").read_bytes()) for name in named}
    yield from wanted(context, of_report(overall(reports)))


def of_positions(found: Mapping[str, Any], wanted: int) -> list[dg.AssetCheckResult]:
    """Turn the answer of the `verify` task into results; damaged files are not read, and `wanted` rows were asked for."""
    files, compared = found["files"], found["compared"]
    unread = ["not looked at, because files are not what the manifest says"] if files else []
    none = ["no row was compared: none is in the dump's readable beginning"] if wanted and not compared else []
    return [
        _listed("positions", FILES, files),
        _listed("positions", SPLITS, unread or found["splits"]),
        _listed("positions", ROWS, unread or found["rows"] or none, rows_compared=compared, rows_wanted=wanted),
        _listed("positions", WHOLE, found["damage"], warns=True),
    ]


def of_training_set(page: Mapping[str, Any], materialised: set[str]) -> list[dg.AssetCheckResult]:
    """Turn the description of a training set into results; warnings, since short games are equal by chance."""
    counts = {name: count for name, count in page["games_on_both_sides"].items() if name != "examples"}
    problems = [f"{count} games of {name} have the moves of a game of train" for name, count in counts.items() if count]
    unused = sorted(materialised - {entry["name"] for entry in page["datasets"]})
    return [
        _listed("training_set", SIDES, problems, warns=True, **counts),
        _listed("training_set", USED, [f"{name} is materialised and not in it" for name in unused], warns=True),
    ]


def of_checkpoint(probe: Mapping[str, Any], asset: str = "checkpoint") -> dg.AssetCheckResult:
    """Turn the answer of the `probe` task into a result."""
    loss = probe["loss"]
    said = f"the loss is {'not finite' if loss is None else format(loss, '.4f')} on {probe['rows']} rows"
    values = {"rows": probe["rows"]} | ({} if loss is None else {"loss": loss})
    return _result(asset, LOSS, loss is not None, said, warns=False, **values)


def of_report(figures: Mapping[str, float]) -> list[dg.AssetCheckResult]:
    """Compare top-1 with the baselines on the same rows; warnings, since a network of one minute may lose."""
    top1, asset = figures["top1"], "accuracy_report"
    return [
        _result(
            asset,
            name,
            top1 > other,
            f"top-1 is {top1:.4f}, {who} gets {other:.4f}",
            top1=top1,
            baseline=other,
        )
        for name, other, who in (
            (CHANCE, figures["chance_top1"], "a move drawn from the legal ones"),
            (CLASSICAL, figures["hand_written_top1"], "the hand-written evaluator"),
        )
    ]


def of_tuned(result: Mapping[str, Any], allowed: float, probe: Mapping[str, Any]) -> list[dg.AssetCheckResult]:
    """Check the best network of a loop by what the loop found; a seed that nothing has beaten is as good as itself."""
    match, before, after = result["against_seed"], result["seed_eval"].get("top1"), result["eval"].get("top1")
    score = 0.5 if match is None else match["score"]
    fall = 0.0 if before is None or after is None else before - after
    met = "it is the seed" if match is None else f"the seed was met {match['games']} times, score {score:.3f}"
    kept = "nothing human was measured" if before is None else f"top-1 was {before:.4f} and is {after:.4f}"
    return [
        of_checkpoint(probe, "tuned_checkpoint"),
        _result("tuned_checkpoint", NOT_WORSE, score >= 0.5, met, score=score),
        _result("tuned_checkpoint", REMEMBERS, fall <= allowed, kept, fall=fall, allowed=allowed),
    ]


def of_strength(row: Mapping[str, Any] | None) -> list[dg.AssetCheckResult]:
    """Check the match with the seed, a row of the ladder; None where nothing was promoted, which is no strength won."""
    if row is None:
        return [_result("strength_report", STRONGER, False, NOTHING_PROMOTED)]
    said = f"Elo {row['elo']:+.0f} [{row['elo_low']:+.0f}, {row['elo_high']:+.0f}] in {row['games']} games"
    return [_result("strength_report", STRONGER, row["elo_low"] > 0, said, elo=row["elo"], elo_low=row["elo_low"])]


def _listed(
    asset: str, name: str, problems: Sequence[str], *, warns: bool = False, **values: int
) -> dg.AssetCheckResult:
    """Return a result that lists problems, passed where there are none."""
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
