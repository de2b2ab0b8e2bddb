"""EVAL: how well a network still predicts people's moves, and how far it is from the supervised one.

Axes: B batch, A label (4096).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import legal_mask
from engine.progress import Progress, Stop, Tick
from pipeline.dataset.batches import Batches
from pipeline.dataset.files.shards import read_manifest
from pipeline.errors import Stopped
from pipeline.evaluation.render import write_report
from pipeline.evaluation.report import Rule, report

BATCH = 1024
POSITIONS = 16_384
"""Most human positions that are measured, over all datasets."""
FIGURES = ("top1", "top3", "cross_entropy", "value_brier")
"""Figures of a report that are averaged over the datasets, weighted by positions."""


def evaluate(
    candidate: Path, supervised: Path, human: Sequence[Path], out: Path, *, progress: Progress, stop: Stop
) -> dict[str, Any]:
    """Return human figures and `kl_seed` on the test positions of datasets, {} without any; reports go to `out/<dataset>`.

    The same positions are measured for every candidate. Raises Stopped, and what `report` raises.
    """
    measured = [directory for directory in human if read_manifest(directory)["positions"].get("test", 0) > 0]
    if not measured:
        return {}
    limit = max(1, POSITIONS // len(measured))
    figures = _measure(candidate, measured, limit, out, progress, stop)
    return figures | {"kl_seed": round(divergence(candidate, supervised, measured, limit, progress, stop), 6)}


def _measure(
    candidate: Path, human: Sequence[Path], limit: int, out: Path, progress: Progress, stop: Stop
) -> dict[str, Any]:
    """Write a report on every dataset, and return the means of its figures."""
    reports = []
    for directory in human:
        if stop():
            raise Stopped("stopped while measuring")
        result = report(candidate, positions=directory, rule=Rule(limit=limit), progress=progress)
        write_report(result, out / directory.resolve().name)
        reports.append(result)
    weights = [result["positions"] for result in reports]
    means = {name: float(np.average([result[name] for result in reports], weights=weights)) for name in FIGURES}
    return {"positions": sum(weights)} | {name: round(value, 6) for name, value in means.items()}


def divergence(
    candidate: Path, supervised: Path, human: Sequence[Path], limit: int, progress: Progress, stop: Stop
) -> float:
    """Return the mean KL divergence of the candidate's policy from the supervised one's on human test positions, nats.

    That is the sum over legal moves of p_seed * log(p_seed / p_candidate), on at most `limit` rows drawn from each dataset.
    """
    from model.checkpoint import load
    from model.data.inputs import input_columns
    from model.inference.evaluator import NetworkEvaluator

    networks = [NetworkEvaluator(load(directory)[0]) for directory in (supervised, candidate)]
    columns = ("planes", *dict.fromkeys(name for network in networks for name in input_columns(network.preset)))
    total, rows = 0.0, 0
    for directory in human:
        batches = Batches([directory], "test", batch_size=BATCH, columns=tuple(dict.fromkeys(columns)))
        for batch in batches.once() if batches.rows <= limit else batches.sample(limit):
            if stop():
                raise Stopped("stopped while measuring")
            legal_BA = legal_mask(batch["planes"])
            policies = [log_policy(network(batch["planes"], batch)[0], legal_BA) for network in networks]
            total += float(divergences(*policies).sum())
            rows += len(batch["planes"])
            progress(Tick(rows, None, "positions", {"kl_seed": total / rows}))
    return total / max(1, rows)


def divergences(log_p_BA: NDArray[np.float64], log_q_BA: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the KL divergence of q from p for every row of log-probabilities, float64[B]; -inf marks illegal moves."""
    p_BA, q_BA = (np.where(np.isfinite(log_p_BA), log_BA, 0.0) for log_BA in (log_p_BA, log_q_BA))
    return np.asarray((np.exp(log_p_BA) * (p_BA - q_BA)).sum(axis=1))


def log_policy(logits_BA: NDArray[np.float32], legal_BA: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the logarithms of a policy over legal moves, float64[B, A]; -inf where a move is illegal."""
    masked_BA = np.where(legal_BA, logits_BA.astype(np.float64), -np.inf)
    shifted_BA = masked_BA - masked_BA.max(axis=1, keepdims=True)
    return np.asarray(shifted_BA - np.log(np.exp(shifted_BA).sum(axis=1, keepdims=True)))
