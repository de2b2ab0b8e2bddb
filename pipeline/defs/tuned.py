"""The assets of self-play: a network that fine-tuning made stronger, and how strong it is. Only their own job makes them.

Fine-tuning takes hours or days, so a run that makes other assets too ("Materialize all") leaves these two out: it says so, and
is a success. For that each is the one asset of a subsettable set: Dagster lets only those yield neither asset nor checks.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dagster as dg

from pipeline.dataset.files.shards import file_hash
from pipeline.defs import checks
from pipeline.defs.assets import CODE_VERSION, Result, checkpoint, inputs, live, newest, plainly, positions
from pipeline.defs.child import run_child
from pipeline.defs.launchpad.forms import filled, form, plain
from pipeline.defs.launchpad.look_ahead import look_ahead
from pipeline.defs.launchpad.options import StrengthOptions, TunedOptions
from pipeline.defs.pages import metadata, tuned_metadata
from pipeline.defs.resources import Compute, Datasets

BACKFILL = "dagster/backfill"
OWN = frozenset({dg.AssetKey("tuned_checkpoint"), dg.AssetKey("strength_report")})
"""The assets of self-play."""


@dg.multi_asset(
    name="tuned_checkpoint",
    specs=[
        dg.AssetSpec(
            "tuned_checkpoint",
            deps=[checkpoint, positions],
            description="A network made stronger by self-play, with its curves over generations, verdicts and games. "
            "Made by the job `finetune`; a retry continues it.",
            group_name="selfplay",
            kinds={"pytorch"},
            code_version=CODE_VERSION,
            skippable=True,
        )
    ],
    can_subset=True,
    pool="accelerator",
    config_schema=form(TunedOptions),
    check_specs=checks.TUNED,
)
def tuned_checkpoint(context: dg.AssetExecutionContext, datasets: Datasets, compute: Compute) -> Iterator[Result]:
    """Fine-tune a checkpoint, where the run is for that."""
    if asked_for(context):
        yield _tuned(context, datasets, compute)


def _tuned(context: dg.AssetExecutionContext, datasets: Datasets, compute: Compute) -> Result:
    """Fine-tune the checkpoint that is named, or the newest."""
    with plainly("choose another `name` in the launchpad's config"):
        look_ahead(context, datasets)
        options = filled(TunedOptions, context.op_execution_context.op_config)
        named = datasets.checkpoint(options.checkpoint) if options.checkpoint else None
        network = named or newest(checkpoint.key, context)
        human = [str(path) for path in inputs(context, datasets, options.positions)]
        root = context.run.root_run_id or context.run.run_id
        out = datasets.tuned(options.name or f"{network.name}-{root[:8]}")
        loop = options.finetune
        config = plain(replace(loop, engine=loop.engine or compute.name))
        request: dict[str, Any] = {"checkpoint": str(network), "positions": human, "config": config, "out": str(out)}
        result = run_child("finetune", request, progress=live(context, every=5.0), lock=out)
        request = {"checkpoint": result["best"], "positions": human[0], "split": None, "drawn": 0}
        probe = run_child("probe", request | {"count": metadata.PROBED})
    return Result(
        metadata=tuned_metadata.of_tuned(out, result),
        check_results=checks.of_tuned(result, options.finetune.eval.max_top1_drop, probe),
        data_version=metadata.data_version(file_hash(out / "best" / "checkpoint.json"), CODE_VERSION),
    )


@dg.multi_asset(
    name="strength_report",
    specs=[
        dg.AssetSpec(
            "strength_report",
            deps=[tuned_checkpoint],
            description="How strong the tuned network is: Elo against its seed, the hand-written player and an engine, with "
            "intervals. Made by the job `finetune`.",
            group_name="reports",
            code_version=CODE_VERSION,
            skippable=True,
        )
    ],
    can_subset=True,
    pool="accelerator",
    config_schema=form(StrengthOptions),
    check_specs=checks.STRENGTH,
)
def strength_report(context: dg.AssetExecutionContext, datasets: Datasets) -> Iterator[Result]:
    """Play a tuned network against its seed and outsiders, where the run is for that."""
    if asked_for(context):
        yield _strength(context, datasets)


def _strength(context: dg.AssetExecutionContext, datasets: Datasets) -> Result:
    """Measure the fine-tuning that is named, or the newest."""
    with plainly():
        look_ahead(context, datasets)
        options = filled(StrengthOptions, context.op_execution_context.op_config)
        named = datasets.tuned(options.tuned) if options.tuned else None
        tuned = named or newest(tuned_checkpoint.key, context)
        best = file_hash(tuned / "best" / "checkpoint.json")
        out = datasets.path / "reports" / f"{tuned.name}-strength-{best[:8]}"
        request = plain(options) | {"tuned": str(tuned), "out": str(out)}
        result = run_child("strength", request, progress=live(context, every=5.0), lock=out)
    return Result(
        metadata=tuned_metadata.of_strength(out, tuned, result),
        check_results=checks.of_strength(result["against_seed"]),
        data_version=metadata.data_version(best, plain(options), CODE_VERSION),
    )


def asked_for(context: dg.AssetExecutionContext) -> bool:
    """Tell whether a run is for the assets of self-play and nothing else; say so where it is not."""
    job = context.op_execution_context.job_def
    wanted = frozenset(context.run.asset_selection or job.asset_layer.executable_asset_keys)
    if context.selected_asset_keys and wanted <= OWN and BACKFILL not in context.run.tags:
        return True
    context.log.warning("left out: it takes hours or days, so start the job `finetune`, or materialise it by itself")
    return False
