"""Functions that run in child processes. Each calls the library and returns JSON values.

Functions that can resume have a parameter `stop`. Heavy libraries are imported inside the
functions, so that only the child process loads them.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from engine.progress import Progress, Stop
from pipeline.evaluation.report import PositionFilter
from pipeline.ingest.chunk import IngestConfig


def ingest(
    source: Path,
    out: Path,
    config: IngestConfig,
    *,
    workers: int,
    engine: str,
    replace: bool,
    progress: Progress,
    stop: Stop,
) -> Mapping[str, Any]:
    """Turn a dump into positions in `out`, and return the manifest.

    With `replace`, or if the dump or the version of the rows has changed, new positions are built
    beside the old ones and replace them at the end (pipeline/ingest/replacing.py).
    """
    from pipeline.dataset.files.manifest import read_manifest
    from pipeline.errors import DamagedError, OtherDumpError
    from pipeline.executors.by_name import make_engine
    from pipeline.ingest import replacing
    from pipeline.ingest.job import ingest as ingest_dumps

    options: dict[str, Any] = {"progress": progress, "stop": stop}
    options["engine"] = make_engine(engine, workers)
    rebuild = partial(replacing.replace_dataset, source, out, config, **options)
    replacing.recover_dataset(out)
    try:
        if replace:
            return rebuild()
        try:
            return ingest_dumps([str(source)], out, config, **options)
        except OtherDumpError:
            # the dump, or the version of the rows, has changed since the positions were built
            return rebuild()
    # The games before the damage form a complete dataset. A check reports the damage.
    except DamagedError:
        return read_manifest(out)


def audit(positions: Sequence[Path], out: Path, *, progress: Progress) -> Mapping[str, Any]:
    """Audit datasets or training sets together, and write the results to `out`."""
    from pipeline.validation.audit import audit as audit_datasets
    from pipeline.validation.audit import write_audit

    result = audit_datasets(positions, progress=progress)
    write_audit(result, out)
    return result


def imitate(
    sources: Sequence[str],
    names: Sequence[str],
    out: Path,
    *,
    progress: Progress,
    stop: Stop,
    **options: Any,
) -> Mapping[str, Any]:
    """Train a network to play like one player, and return its report.

    `names` are the player's names in the games.
    """
    from pipeline.imitation.imitate import imitate as imitate_player
    from pipeline.imitation.page import write_headline

    result = imitate_player(sources, names, out, progress=progress, stop=stop, **options)
    return {**result, "headline": write_headline(result)}


def report(
    checkpoint: Path,
    positions: Path,
    split: str,
    rule: PositionFilter,
    out: Path,
    *,
    progress: Progress,
) -> Mapping[str, Any]:
    """Measure a checkpoint on a split of a dataset, and write the report to `out`."""
    from pipeline.evaluation.render import write_report
    from pipeline.evaluation.report import report as measure

    result = measure(checkpoint, positions=positions, split=split, rule=rule, progress=progress)
    write_report(result, out)
    return result


def probe(checkpoint: Path, positions: Path, split: str | None, count: int) -> Mapping[str, Any]:
    """Measure cross-entropy on up to `count` random rows of a split; None draws from all splits.

    Returns `loss` in nats, which is None if it is not finite or no row has a move, and `rows`, the
    number of rows with a move.
    """
    import numpy as np
    import torch

    from engine.encoding.planes import legal_mask
    from engine.encoding.views import NO_LABEL
    from model.inference.evaluator import evaluator
    from pipeline.dataset.dataset import open_unverified
    from pipeline.validation.verify import sample_rows

    sampled = sample_rows(open_unverified(positions), count, split)
    rows = [row for row in sampled if row["label"] not in (None, NO_LABEL)]
    if not rows:  # a dataset of evaluated positions may have no moves
        return {"loss": None, "rows": 0}
    planes_RP = np.stack([np.frombuffer(row["planes"], "<u8") for row in rows])
    logits_RA, _ = evaluator(checkpoint)(planes_RP)
    masked_RA = np.where(legal_mask(planes_RP), logits_RA.astype(np.float64), -np.inf)
    log_RA = torch.from_numpy(masked_RA).log_softmax(1).numpy()
    loss = -float(np.mean(log_RA[np.arange(len(rows)), [row["label"] for row in rows]]))
    return {"loss": loss if np.isfinite(loss) else None, "rows": len(rows)}
