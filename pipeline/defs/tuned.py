"""The assets of self-play: a network that fine-tuning made stronger, and how strong it is. Only their own job makes them.

Fine-tuning takes hours or days, so a run that makes other assets too ("Materialize all") leaves these two out: it says so, and
is a success. For that each is the one asset of a subsettable set: Dagster lets only those yield neither asset nor checks.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial

import dagster as dg

from pipeline.dataset.files.shards import file_hash
from pipeline.defs import checks, tasks
from pipeline.defs.assets import (
    OWNERS,
    Result,
    checked,
    checkpoint,
    inputs,
    live,
    newest,
    positions,
    tell,
)
from pipeline.defs.child import run_child
from pipeline.defs.launchpad.forms import Form, options_of
from pipeline.defs.launchpad.options import StrengthOptions, TunedOptions
from pipeline.defs.pages import metadata, tuned_metadata
from pipeline.defs.resources import Compute, Datasets
from pipeline.defs.versions import CODE_VERSION, code_of

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
            owners=OWNERS,
            tags={"stage": "training"},
            kinds={"pytorch"},
            code_version=code_of(
                *("pipeline/finetune", "pipeline/selfplay", "pipeline/reanalyse", "pipeline/training"),
                *("engine/selfplay", "engine/search", "model/training", "model/inference"),
            ),
            skippable=True,
        )
    ],
    can_subset=True,
    pool="accelerator",
    check_specs=checks.TUNED,
)
def tuned_checkpoint(
    context: dg.AssetExecutionContext, config: Form[TunedOptions], datasets: Datasets, compute: Compute
) -> Iterator[Result]:
    """Fine-tune the checkpoint that is named, or the newest, where the run is for that."""
    if not asked_for(context):
        return
    with checked(context, datasets, "choose another `name` in the launchpad's config"):
        options = options_of(config)
        named = datasets.checkpoint(options.checkpoint) if options.checkpoint else None
        network = named or newest(checkpoint.key, context)
        human = inputs(context, datasets, options.positions)
        root = context.run.root_run_id or context.run.run_id
        out = datasets.tuned(options.name or f"{network.name}-{root[:8]}")
        loop = options.finetune
        loop = replace(loop, engine=compute.name, eval=replace(loop.eval, engine=compute.uci_engine))
        tell(context, checkpoint=network.name, tuned=out.name, generations=loop.generations, minutes=loop.minutes)
        work = partial(tasks.finetune, network, loop, out, human=human)
        result = run_child(work, progress=live(context), lock=out)
        probe = run_child(partial(tasks.probe, out / "best", human[0], None, metadata.PROBED))
    yield Result(
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
            owners=OWNERS,
            tags={"stage": "evaluation"},
            kinds={"json"},
            code_version=code_of("pipeline/finetune/strength.py", "pipeline/matches", "engine/match", "engine/search"),
            skippable=True,
        )
    ],
    can_subset=True,
    pool="accelerator",
    check_specs=checks.STRENGTH,
)
def strength_report(
    context: dg.AssetExecutionContext, config: Form[StrengthOptions], datasets: Datasets, compute: Compute
) -> Iterator[Result]:
    """Play the fine-tuning that is named, or the newest, against its seed and outsiders, where the run is for that."""
    if not asked_for(context):
        return
    with checked(context, datasets):
        options = options_of(config)
        named = datasets.tuned(options.tuned) if options.tuned else None
        tuned = named or newest(tuned_checkpoint.key, context)
        best = file_hash(tuned / "best" / "checkpoint.json")
        out = datasets.path / "reports" / f"{tuned.name}-strength-{best[:8]}"
        chosen = {name: value for name, value in asdict(options).items() if name != "tuned"}
        chosen["engine"] = compute.uci_engine
        result = run_child(partial(tasks.strength, tuned, out, chosen), progress=live(context), lock=out)
    yield Result(
        metadata=tuned_metadata.of_strength(out, tuned, result),
        check_results=checks.of_strength(result["against_seed"]),
        data_version=metadata.data_version(best, options, CODE_VERSION),
    )


def asked_for(context: dg.AssetExecutionContext) -> bool:
    """Return whether a run is for the assets of self-play and nothing else; say so where it is not."""
    job = context.op_execution_context.job_def
    wanted = frozenset(context.run.asset_selection or job.asset_layer.executable_asset_keys)
    if context.selected_asset_keys and wanted <= OWN and BACKFILL not in context.run.tags:
        return True
    context.log.warning("left out: it takes hours or days, so start the job `finetune`, or materialise it by itself")
    return False
