"""The asset of players: for each of them, a network that plays like them."""

from functools import partial

import dagster as dg

from pipeline.dataset.files.shards import file_hash
from pipeline.defs import checks, tasks
from pipeline.defs.assets import ADD_PARTITION, Result, report_user_errors
from pipeline.defs.child import run_child
from pipeline.defs.launchpad.forms import Form, read_form
from pipeline.defs.launchpad.options import ImitationOptions
from pipeline.defs.pages.imitation_metadata import describe_imitation
from pipeline.defs.pages.metadata import CODE_VERSION
from pipeline.defs.progress import log_asset_progress
from pipeline.defs.resources import SAMPLE, Datasets
from pipeline.samples.shipped import EMBEDDED

players = dg.DynamicPartitionsDefinition(name="players")
"""A partition for each player, named exactly as in the tags White and Black."""


@dg.asset(
    partitions_def=players,
    group_name="model",
    kinds={"pytorch"},
    pool="accelerator",
    code_version=CODE_VERSION,
    check_specs=[checks.IMITATION],
)
def imitation(
    context: dg.AssetExecutionContext, config: Form[ImitationOptions], datasets: Datasets
) -> Result:
    """A network that plays like one player, and its report. A retry resumes.

    The partition is the player's name, exactly as in the games: add it in the launch dialog.
    """
    with report_user_errors(ADD_PARTITION):
        options = read_form(config)
        names = options.games or tuple(name for name in datasets.dumps() if name != SAMPLE)
        out = datasets.imitation(context.partition_key)
        work = partial(
            tasks.imitate,
            [str(datasets.source(name)) for name in names],
            [context.partition_key, *options.names],
            out,
            base=datasets.checkpoint(options.base) if options.base else EMBEDDED,
            stranger=datasets.imitation(options.stranger) if options.stranger else None,
            report=datasets.path / "reports" / out.name,
        )
        result = run_child(work, progress=log_asset_progress(context), lock=out)
    return Result(
        metadata=describe_imitation(out, datasets.path / "reports" / out.name, result),
        check_results=[checks.evaluate_imitation(result)],
        data_version=dg.DataVersion(file_hash(out / "checkpoint.json")),
    )
