"""Assets that fine-tune a network: by self-play, with a report on its strength, or to one player.

Each takes minutes to days, so none has a partition until a user adds one.
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
from pipeline.defs.resources import SAMPLE_KEY, DataFolder
from pipeline.defs.steps import (
    find_input,
    find_inputs,
    find_training_set_of,
    report_user_errors,
    run_step,
)
from pipeline.finetune.loop import finetune
from pipeline.finetune.strength import measure_strength
from pipeline.samples.shipped import EMBEDDED_CHECKPOINT
from pipeline.storage.stores import hash_file

tuning_partitions = dg.DynamicPartitionsDefinition(name="tunings")
"""Partitions of fine-tunings; a key is the name of the folder."""
player_partitions = dg.DynamicPartitionsDefinition(name="players")
"""Partitions of players; a key is a name as in the PGN tags White and Black."""
ADD_PARTITION_REMEDY = "add another partition"
"""Remedy if the folder, which is named by the partition, contains something else."""


@dg.asset(
    partitions_def=tuning_partitions,
    deps=[checkpoint, dg.AssetDep(positions, partition_mapping=dg.AllPartitionMapping())],
    group_name="selfplay",
    kinds={"pytorch"},
    pool="accelerator",
    code_version=CODE_VERSION,
    check_specs=checks.make_specs("tuned_checkpoint"),
)
def tuned_checkpoint(
    context: dg.AssetExecutionContext, config: Form[TunedOptions], datasets: DataFolder
) -> Result:
    """A network improved by its own search, with the result of each generation and sample games.

    This takes hours. The partition is a name of your choice, and becomes the folder in
    `datasets/tuned/`. Add it in the launch dialog. To resume, launch the same partition again.
    """
    with report_user_errors(ADD_PARTITION_REMEDY):
        options = read_form(config)
        network = find_input(context, datasets, checkpoint.key, options.checkpoint)
        own_set = None if options.positions else find_training_set_of(network, context.instance)
        human = find_inputs(context, datasets, options.positions) if own_set is None else [own_set]
        out = datasets.result_folder("tuned", context.partition_key)
        loop_config = replace(options.finetune, engine=datasets.executor)
        work = partial(finetune, network, loop_config, out, human=human)
        result = run_step(context, work, lock=out)
        dataset = Dataset.open(human[0]).parts[0].path
        probe = child.run_child(
            partial(tasks.probe, out / "best", dataset, None, metadata.PROBE_ROWS)
        )
    return Result(
        metadata=tuned_metadata.describe_finetuning(out, result),
        check_results=[checks.evaluate_checkpoint(probe)],
        data_version=metadata.hash_data_version(hash_file(out / "best" / CARD_FILE), CODE_VERSION),
    )


@dg.asset(
    partitions_def=tuning_partitions,
    deps=[tuned_checkpoint],
    group_name="reports",
    kinds={"json"},
    pool="accelerator",
    code_version=CODE_VERSION,
    check_specs=checks.make_specs("strength_report"),
)
def strength_report(
    context: dg.AssetExecutionContext, config: Form[StrengthOptions], datasets: DataFolder
) -> Result:
    """Elo of the tuned network against its start, the hand-written player and a UCI engine."""
    with report_user_errors():
        options = read_form(config)
        tuned = datasets.result_folder("tuned", context.partition_key)
        card = tuned / "best" / CARD_FILE
        if not card.is_file():
            raise UserError(f"{card} is missing: materialize `tuned_checkpoint` of this partition")
        best = hash_file(card)
        out = datasets.path / "reports" / f"{tuned.name}-strength-{best[:8]}"
        work = partial(measure_strength, tuned, out, simulations=options.simulations)
        work = partial(work, games=options.games, hand_written=64)
        work = partial(work, engine=datasets.uci_engine, nodes=(100,))
        result = run_step(context, work, lock=out)
    return Result(
        metadata=tuned_metadata.describe_strength(out, tuned, result),
        check_results=[checks.evaluate_strength(result["against_seed"])],
        data_version=metadata.hash_data_version(best, options, CODE_VERSION),
    )


@dg.asset(
    partitions_def=player_partitions,
    group_name="model",
    kinds={"pytorch"},
    pool="accelerator",
    code_version=CODE_VERSION,
    check_specs=checks.make_specs("imitation"),
)
def imitation(
    context: dg.AssetExecutionContext, config: Form[ImitationOptions], datasets: DataFolder
) -> Result:
    """A network that plays like one player, and its report. Run it again to resume.

    The partition is the player's name, exactly as in the games. Add it in the launch dialog.
    """
    with report_user_errors(ADD_PARTITION_REMEDY):
        options = read_form(config)
        names = options.games or tuple(name for name in datasets.list_dumps() if name != SAMPLE_KEY)
        out = datasets.imitation_folder(context.partition_key)
        report = datasets.path / "reports" / out.name
        work = partial(
            tasks.imitate,
            [str(datasets.find_dump(name)) for name in names],
            [context.partition_key, *options.names],
            out,
            base=datasets.result_folder("checkpoints", options.base)
            if options.base
            else EMBEDDED_CHECKPOINT,
            stranger=datasets.imitation_folder(options.stranger) if options.stranger else None,
            report=report,
        )
        result = run_step(context, work, lock=out)
    return Result(
        metadata=tuned_metadata.describe_imitation(out, report, result),
        check_results=[checks.evaluate_imitation(result)],
        data_version=dg.DataVersion(hash_file(out / CARD_FILE)),
    )
