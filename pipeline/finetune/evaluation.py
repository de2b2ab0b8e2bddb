"""EVAL: what a network still knows of people's moves, how far it has gone from the seed, and what outsiders say of it.

Axes: B batch, A label (4096).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engine.encoding.planes import legal_mask
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.batches import Batches
from pipeline.dataset.files.shards import read_manifest
from pipeline.errors import Stopped
from pipeline.evaluation.render import write_report
from pipeline.evaluation.report import Rule, report
from pipeline.finetune.config import EvalConfig, GateConfig
from pipeline.matches.arena import play_matches
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.storage.preflight import is_installed

if TYPE_CHECKING:
    from model.inference.evaluator import NetworkEvaluator

BATCH = 1024
FIGURES = ("top1", "top3", "cross_entropy", "value_brier")
"""Figures of a report that are averaged over the datasets, weighted by positions."""


def evaluate(
    candidate: Path,
    seed_checkpoint: Path,
    human: Sequence[Path],
    config: EvalConfig,
    gate: GateConfig,
    out: Path,
    *,
    outside: bool,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Measure a candidate: human figures and `kl_seed` where human test positions are given, and matches with outsiders.

    The same rows are measured for every candidate. Reports go to `out/<dataset>`, matches to `out/matches`. `outside`
    asks for the matches. Raises Stopped, and what `report` and `play_matches` raise; the same call goes on.
    """
    out.mkdir(parents=True, exist_ok=True)
    measured = tested(human)
    figures: dict[str, Any] = {}
    if measured:
        share = max(1, config.positions // len(measured))
        figures = _human(candidate, measured, share, out, progress, stop)
        distance = divergence(candidate, seed_checkpoint, measured, share, progress=progress, stop=stop)
        figures["kl_seed"] = round(distance, 6)
    against = outsiders(config) if outside else []
    if against and config.games:
        own = SideConfig(who=str(candidate), simulations=gate.simulations)
        pairings, match = [(own, other) for other in against], ArenaConfig(games=config.games)
        rows = play_matches(pairings, match, out / "matches", progress=progress, stop=stop)["rows"]
        names = ("b", "games", "score", "elo", "elo_low", "elo_high")
        figures["outside"] = [{name: row[name] for name in names} for row in rows]
    return figures


def tested(human: Sequence[Path]) -> list[Path]:
    """Return the datasets that have test positions."""
    return [directory for directory in human if read_manifest(directory)["positions"].get("test", 0) > 0]


def outsiders(config: EvalConfig) -> list[SideConfig]:
    """List the opponents that are neither the seed nor made of it: the hand-written player, and an engine if installed."""
    found = []
    if config.hand_written:
        found.append(SideConfig(who="hand-written", simulations=config.hand_written))
    if config.engine and is_installed(config.engine):
        options = ("Threads=1", "Hash=16") if "stockfish" in config.engine.lower() else ()
        found.append(SideConfig(who=f"uci:{config.engine}", nodes=config.nodes, options=options))
    return found


def _human(
    candidate: Path, human: Sequence[Path], limit: int, out: Path, progress: Progress, stop: Stop
) -> dict[str, Any]:
    """Report on every dataset, and average; `top1_untold` is that of the network when it is told no rating and no clock."""
    from model.checkpoint import read_card

    rule, reports = Rule(limit=limit), []
    told = read_card(candidate)["preset"].get("condition", "none") != "none"
    for directory in human:
        _go_on(stop)
        result = report(candidate, positions=directory, rule=rule, progress=progress)
        write_report(result, out / directory.resolve().name)
        untold = report(candidate, positions=directory, rule=rule, players=False, progress=progress) if told else result
        reports.append(result | {"top1_untold": untold["top1"]})
    weights = [result["positions"] for result in reports]
    names = (*FIGURES, "top1_untold")
    means = {name: float(np.average([result[name] for result in reports], weights=weights)) for name in names}
    return {"positions": sum(weights)} | {name: round(value, 6) for name, value in means.items()}


def divergence(
    candidate: Path,
    seed_checkpoint: Path,
    human: Sequence[Path],
    limit: int,
    *,
    progress: Progress = silent,
    stop: Stop = never,
) -> float:
    """Return the Kullback-Leibler divergence of the candidate's policy from the seed's on human test positions, nats.

    The mean over rows of the sum over legal moves of p_seed * log(p_seed / p_candidate); `limit`
    rows of each dataset, drawn at random.
    """
    from model.checkpoint import load
    from model.data.inputs import input_columns
    from model.inference.evaluator import NetworkEvaluator

    networks = [NetworkEvaluator(load(directory)[0]) for directory in (seed_checkpoint, candidate)]
    columns = ("planes", *dict.fromkeys(name for network in networks for name in input_columns(network.preset)))
    total, rows = 0.0, 0
    for directory in human:
        batches = Batches([directory], "test", batch_size=BATCH, columns=tuple(dict.fromkeys(columns)))
        for batch in batches.once() if batches.rows <= limit else batches.sample(limit):
            _go_on(stop)
            total += float(_divergences(networks[0], networks[1], batch).sum())
            rows += len(batch["planes"])
            progress(Tick(rows, None, "positions", {"kl_seed": total / rows}))
    return total / max(1, rows)


def _divergences(
    seed: "NetworkEvaluator", candidate: "NetworkEvaluator", batch: dict[str, NDArray[Any]]
) -> NDArray[np.float64]:
    """Return the divergence of every row, float64[B]."""
    legal_BA = legal_mask(batch["planes"])
    seed_BA, candidate_BA = (
        np.where(legal_BA, log_policy(network(batch["planes"], batch)[0], legal_BA), 0.0)
        for network in (seed, candidate)
    )
    terms_BA = np.where(legal_BA, np.exp(seed_BA) * (seed_BA - candidate_BA), 0.0)
    return np.asarray(terms_BA.sum(axis=1))


def log_policy(logits_BA: NDArray[np.float32], legal_BA: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the logarithms of a policy over legal moves, float64[B, A]; -inf where a move is illegal."""
    masked_BA = np.where(legal_BA, logits_BA.astype(np.float64), -np.inf)
    shifted_BA = masked_BA - masked_BA.max(axis=1, keepdims=True)
    return np.asarray(shifted_BA - np.log(np.exp(shifted_BA).sum(axis=1, keepdims=True)))


def _go_on(stop: Stop) -> None:
    """Raise Stopped when it is asked for."""
    if stop():
        raise Stopped("stopped while measuring")
