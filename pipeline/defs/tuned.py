"""The assets of self-play: a fine-tuned network, and its strength. They take hours or days."""

from dataclasses import replace
from functools import partial

import dagster as dg

from engine.errors import UserError
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.files.shards import file_hash
from pipeline.defs import checks, tasks
from pipeline.defs.assets import (
    ADD_PARTITION,
    Result,
    checkpoint,
    find_input,
    find_inputs,
    find_own_set,
    positions,
    report_user_errors,
)
from pipeline.defs.child import run_child
from pipeline.defs.launchpad.forms import Form, read_form
from pipeline.defs.launchpad.options import StrengthOptions, TunedOptions
from pipeline.defs.pages import metadata, tuned_metadata
from pipeline.defs.pages.metadata import CODE_VERSION
from pipeline.defs.progress import log_asset_progress
from pipeline.defs.resources import Compute, Datasets
from pipeline.finetune.loop import finetune
from pipeline.finetune.strength import strength

tunings = dg.DynamicPartitionsDefinition(name="tunings")
"""A partition for each fine-tuning: the name of its folder."""


@dg.asset(
    partitions_def=tunings,
    deps=[checkpoint, dg.AssetDep(positions, partition_mapping=dg.AllPartitionMapping())],
    group_name="selfplay",
    kinds={"pytorch"},
    pool="accelerator",
    code_version=CODE_VERSION,
    check_specs=[checks.TUNED],
)
def tuned_checkpoint(
    context: dg.AssetExecutionContext,
    config: Form[TunedOptions],
    datasets: Datasets,
    compute: Compute,
) -> Result:
    """A network improved by self-play, with verdicts and sample games.

    It takes hours. The partition is a name of yours for it, the folder in `datasets/tuned/`: add it
    in the launch dialog of the job `finetune`. The same partition resumes.
    """
    with report_user_errors(ADD_PARTITION):
        options = read_form(config)
        network = find_input(datasets.checkpoint, options.checkpoint, checkpoint.key, context)
        own = None if options.positions else find_own_set(context.instance, network)
        human = find_inputs(context, datasets, options.positions) if own is None else [own]
        out = datasets.tuned(context.partition_key)
        loop = replace(options.finetune, engine=compute.name)
        work = partial(finetune, network, loop, out, human=human)
        result = run_child(work, progress=log_asset_progress(context), lock=out)
        probe = run_child(
            partial(
                tasks.probe,
                out / "best",
                Dataset.open(human[0]).parts[0].path,
                None,
                metadata.PROBED,
            )
        )
    return Result(
        metadata=tuned_metadata.describe_tuned(out, result),
        check_results=[checks.evaluate_checkpoint(probe)],
        data_version=metadata.data_version(
            file_hash(out / "best" / "checkpoint.json"), CODE_VERSION
        ),
    )


@dg.asset(
    partitions_def=tunings,
    deps=[tuned_checkpoint],
    group_name="reports",
    kinds={"json"},
    pool="accelerator",
    code_version=CODE_VERSION,
    check_specs=[checks.STRENGTH],
)
def strength_report(
    context: dg.AssetExecutionContext,
    config: Form[StrengthOptions],
    datasets: Datasets,
    compute: Compute,
) -> Result:
    """Elo of the tuned network against its origin, the hand-written player and an engine."""
    with report_user_errors():
        options = read_form(config)
        tuned = datasets.tuned(context.partition_key)
        card = tuned / "best" / "checkpoint.json"
        if not card.is_file():
            raise UserError(f"{card} is missing: materialize `tuned_checkpoint` of this partition")
        best = file_hash(card)
        out = datasets.path / "reports" / f"{tuned.name}-strength-{best[:8]}"
        work = partial(strength, tuned, out, simulations=options.simulations, games=options.games)
        work = partial(work, hand_written=64, engine=compute.uci_engine, nodes=(100,))
        result = run_child(work, progress=log_asset_progress(context), lock=out)
    return Result(
        metadata=tuned_metadata.describe_strength(out, tuned, result),
        check_results=[checks.evaluate_strength(result["against_seed"])],
        data_version=metadata.data_version(best, options, CODE_VERSION),
    )
