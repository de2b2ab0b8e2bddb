"""Before hours are spent: does the search that is to teach know more than the network that is to learn?

positions of the human datasets' held-out splits -> an engine's scores of every move -> the pupil's policy and value, the
teacher's -> a line, and a refusal where the teacher is not nearer
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import chess
import numpy as np

from engine.board.position import MAX_MOVES
from engine.progress import Progress, Stop
from pipeline.dataset.fen_rows import fen_rows
from pipeline.dataset.files.shards import publish_json, read_manifest
from pipeline.errors import Stopped
from pipeline.evaluation.judgements import DEPTH, judged_fens, judging
from pipeline.executors.local import available_cores
from pipeline.finetune.config import FinetuneConfig
from pipeline.finetune.state import FinetuneError
from pipeline.matches.judge import BARE, Searcher, weigh
from pipeline.storage.preflight import is_installed

PREFLIGHT = "preflight"
RESULT = "preflight.json"
READ = 1 << 14
"""Rows of each dataset that positions are drawn from."""


def preflight(
    checkpoint: Path, config: FinetuneConfig, human: Sequence[Path], out: Path, progress: Progress, stop: Stop
) -> dict[str, Any] | None:
    """Judge the teacher and the pupil once for a loop, and return the figures; None where nothing can be judged.

    It needs human datasets with held-out positions, and the engine of `config.eval`. Raises FinetuneError where the search's
    policy does not lose less than the network's, or a value that it teaches errs more, unless `config.force`; JudgeError,
    Stopped.
    """
    if (out / RESULT).exists() or not config.preflight or not is_installed(config.eval.engine):
        return None
    fens = _fens(human, config.preflight, config.seed)
    if not fens:
        return None
    engine = {"command": judging(config.eval.engine), "depth": DEPTH, "workers": available_cores()}
    found = judged_fens(fens, out, **engine, progress=progress, stop=stop)  # type: ignore[arg-type]
    if stop():
        raise Stopped("stopped while positions were judged; run the same command to continue")
    players = _players(checkpoint, config)
    rows = weigh(players, found, progress, stop)["players"]
    told = compared(rows[0], rows[-1], config)
    if not told["better"] and not config.force:
        other = "--explorer reanalyse" if config.explore.plays else "more simulations"
        raise FinetuneError(f"{told['text']}: it has nothing to teach; try {other}, or go on all the same with --force")
    publish_json(out, RESULT, told)
    return told


def compared(pupil: dict[str, Any], teacher: dict[str, Any], config: FinetuneConfig) -> dict[str, Any]:
    """Return whether a teacher's row of a judging is `better` than the pupil's, with the figures and a `text`."""
    policy = {"pupil": pupil["policy_loss"], "teacher": teacher["taught_loss"]}
    value = {"pupil": pupil["value_error"], "teacher": teacher["best_error"]}
    used = [policy, value] if config.train.search_value_share else [policy]
    text = (
        f"the search's policy loses {policy['teacher']:.4f} of expected score per move, and the network's "
        f"{policy['pupil']:.4f}; its value errs by {value['teacher']:.4f}, and the network's by {value['pupil']:.4f}"
    )
    better = all(figures["teacher"] < figures["pupil"] for figures in used)
    return {"policy": policy, "value": value, "better": better, "text": text}


def _players(checkpoint: Path, config: FinetuneConfig) -> list[Searcher]:
    """Return the pupil and the teacher, one and the same where a network is taught by its own search."""
    from engine.evaluation.handwritten import evaluate
    from model.inference.evaluator import evaluator

    search = replace(config.explore.search, gumbel_scale=0.0)
    pupil = Searcher("network", (), evaluator(checkpoint), search)
    if config.explore.uses_network:
        return [pupil]
    return [pupil._replace(search=BARE), Searcher("hand-written", (), evaluate, search)]


def _fens(human: Sequence[Path], count: int, seed: int) -> list[str]:
    """Draw positions of held-out splits, test before val, with more than one legal move."""
    found: list[str] = []
    for directory in human:
        counts = read_manifest(directory)["positions"]
        split = next((name for name in ("test", "val") if counts[name]), None)
        rows = 0
        for table in fen_rows(directory, split) if split else ():
            found += table["fen"].to_pylist()
            rows += len(table)
            if rows >= READ:
                break
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(found))
    fit = (found[at] for at in order if 1 < chess.Board(found[at]).legal_moves.count() <= MAX_MOVES)
    return list(dict.fromkeys(islice(fit, count)))
