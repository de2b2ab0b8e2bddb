"""Assets that fine-tune a network: by self-play, with a report of its strength, or to one player.

Each takes minutes to days, so a partition exists only once a user adds its name.
"""

from dataclasses import replace
from functools import partial

import dagster as dg

from engine.errors import UserError
from model.card import CARD_FILE
from pipeline.dataset.dataset import Dataset
from pipeline.defs import checks, child, tasks
from pipeline.defs.assets import Result, checkpoint, positions
from pipeline.defs.launchpad.forms import Form, read_form
from pipeline.defs.launchpad.options import ImitationOptions, StrengthOptions, TunedOptions
from pipeline.defs.pages import metadata, tuned_metadata
from pipeline.defs.pages.metadata import CODE_VERSION
from pipeline.defs.resources import SAMPLE_KEY, Datasets
from pipeline.defs.steps import find_input, find_inputs, find_own_set, report_user_errors, run_step
from pipeline.finetune.loop import finetune
from pipeline.finetune.strength import measure_strength
from pipeline.samples.shipped import EMBEDDED
from pipeline.storage.stores import file_hash

tunings = dg.DynamicPartitionsDefinition(name="tunings")
"""One partition per fine-tuning: the name of its folder."""
players = dg.DynamicPartitionsDefinition(name="players")
"""One partition per player, named exactly as in the PGN tags White and Black."""
ADD_PARTITION = "add another partition"
"""Remedy for assets whose folder is named by the partition."""


@dg.asset(
    partitions_def=tunings,
    deps=[checkpoint, dg.AssetDep(positions, partition_mapping=dg.AllPartitionMapping())],
    group_name="selfplay",
    kinds={"pytorch"},
    pool="accelerator",
    code_version=CODE_VERSION,
    check_specs=checks.make_specs("tuned_checkpoint"),
)
def tuned_checkpoint(
    context: dg.AssetExecutionContext, config: Form[TunedOptions], datasets: Datasets
) -> Result:
    """A network improved by self-play, with verdicts and sample games.

    Takes hours. The partition is a name that you choose, and the folder in `datasets/tuned/`. Add
    it in the launch dialog; launching the same partition again resumes.
    """
    with report_user_errors(ADD_PARTITION):
        options = read_form(config)
        network = find_input(context, datasets, checkpoint.key, options.checkpoint)
        own = None if options.positions else find_own_set(context.instance, network)
        human = find_inputs(context, datasets, options.positions) if own is None else [own]
        out = datasets.folder("tuned", context.partition_key)
        loop = replace(options.finetune, engine=datasets.executor)
        result = run_step(context, partial(finetune, network, loop, out, human=human), lock=out)
        measured = Dataset.open(human[0]).parts[0].path
        probe = child.run_child(
            partial(tasks.probe, out / "best", measured, None, metadata.PROBE_ROWS)
        )
    return Result(
        metadata=tuned_metadata.describe_finetuning(out, result),
        check_results=[checks.evaluate_checkpoint(probe)],
        data_version=metadata.data_version(file_hash(out / "best" / CARD_FILE), CODE_VERSION),
    )


@dg.asset(
    partitions_def=tunings,
    deps=[tuned_checkpoint],
    group_name="reports",
    kinds={"json"},
    pool="accelerator",
    code_version=CODE_VERSION,
    check_specs=checks.make_specs("strength_report"),
)
def strength_report(
    context: dg.AssetExecutionContext, config: Form[StrengthOptions], datasets: Datasets
) -> Result:
    """Elo of the tuned network against its start, the hand-written player and an engine."""
    with report_user_errors():
        options = read_form(config)
        tuned = datasets.folder("tuned", context.partition_key)
        card = tuned / "best" / CARD_FILE
        if not card.is_file():
            raise UserError(f"{card} is missing: materialize `tuned_checkpoint` of this partition")
        best = file_hash(card)
        out = datasets.path / "reports" / f"{tuned.name}-strength-{best[:8]}"
        work = partial(measure_strength, tuned, out, simulations=options.simulations)
        work = partial(work, games=options.games, hand_written=64)
        work = partial(work, engine=datasets.uci_engine, nodes=(100,))
        result = run_step(context, work, lock=out)
    return Result(
        metadata=tuned_metadata.describe_strength(out, tuned, result),
        check_results=[checks.evaluate_strength(result["against_seed"])],
        data_version=metadata.data_version(best, options, CODE_VERSION),
    )


@dg.asset(
    partitions_def=players,
    group_name="model",
    kinds={"pytorch"},
    pool="accelerator",
    code_version=CODE_VERSION,
    check_specs=checks.make_specs("imitation"),
)
def imitation(
    context: dg.AssetExecutionContext, config: Form[ImitationOptions], datasets: Datasets
) -> Result:
    """A network that plays like one player, and its report. A retry resumes.

    The partition is the player's name, exactly as in the games. Add it in the launch dialog.
    """
    with report_user_errors(ADD_PARTITION):
        options = read_form(config)
        names = options.games or tuple(name for name in datasets.dumps() if name != SAMPLE_KEY)
        out = datasets.imitation(context.partition_key)
        report = datasets.path / "reports" / out.name
        work = partial(
            tasks.imitate,
            [str(datasets.source(name)) for name in names],
            [context.partition_key, *options.names],
            out,
            base=datasets.folder("checkpoints", options.base) if options.base else EMBEDDED,
            stranger=datasets.imitation(options.stranger) if options.stranger else None,
            report=report,
        )
        result = run_step(context, work, lock=out)
    return Result(
        metadata=tuned_metadata.describe_imitation(out, report, result),
        check_results=[checks.evaluate_imitation(result)],
        data_version=dg.DataVersion(file_hash(out / CARD_FILE)),
    )
