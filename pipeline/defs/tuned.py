"""The assets of self-play: a network that fine-tuning made stronger, and how strong it is. Only their own job makes them."""

from dataclasses import replace
from typing import Any

import dagster as dg

from pipeline.defs import checks, metadata, tuned_metadata
from pipeline.defs.assets import CODE_VERSION, Result, checkpoint, folder_of, live, plainly, positions
from pipeline.defs.child import run_child
from pipeline.defs.forms import filled, form, plain
from pipeline.defs.look_ahead import look_ahead
from pipeline.defs.options import StrengthOptions, TunedOptions
from pipeline.defs.resources import Compute, Datasets
from pipeline.shards import file_hash


@dg.asset(
    deps=[checkpoint, positions],
    group_name="selfplay",
    kinds={"pytorch"},
    pool="accelerator",
    code_version=CODE_VERSION,
    config_schema=form(TunedOptions),
    check_specs=checks.TUNED,
)
def tuned_checkpoint(context: dg.AssetExecutionContext, datasets: Datasets, compute: Compute) -> Result:
    """A network made stronger by self-play, with its curves over generations, verdicts and games. A retry continues it."""
    with plainly():
        look_ahead(context, datasets)
        options = filled(TunedOptions, context.op_execution_context.op_config)
        named = datasets.checkpoint(options.checkpoint) if options.checkpoint else None
        network = named or folder_of(checkpoint.key, context.instance, context.run)
        human = [str(path) for path in datasets.materialised(options.positions)]
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


@dg.asset(
    deps=[tuned_checkpoint],
    group_name="reports",
    pool="accelerator",
    code_version=CODE_VERSION,
    config_schema=form(StrengthOptions),
    check_specs=checks.STRENGTH,
)
def strength_report(context: dg.AssetExecutionContext, datasets: Datasets) -> Result:
    """How strong the tuned network is: Elo against its seed, the hand-written player and an engine, with intervals."""
    with plainly():
        look_ahead(context, datasets)
        options = filled(StrengthOptions, context.op_execution_context.op_config)
        named = datasets.tuned(options.tuned) if options.tuned else None
        tuned = named or folder_of(tuned_checkpoint.key, context.instance, context.run)
        best = file_hash(tuned / "best" / "checkpoint.json")
        out = datasets.path / "reports" / f"{tuned.name}-strength-{best[:8]}"
        request = plain(options) | {"tuned": str(tuned), "out": str(out)}
        result = run_child("strength", request, progress=live(context, every=5.0), lock=out)
    return Result(
        metadata=tuned_metadata.of_strength(out, tuned, result),
        check_results=checks.of_strength(result["rows"][0]),
        data_version=metadata.data_version(best, plain(options), CODE_VERSION),
    )
