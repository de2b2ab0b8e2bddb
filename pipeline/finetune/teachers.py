"""Compare possible teachers of a network on held-out positions of people's games.

    held-out positions --searches of the network, hand-written player--> policies, values --referee--> rows --> Choice

A teacher of the policy must lose less than the move that the network's own small search plays in a match. A teacher of the
value must err less than the bare network, whose value a search reads at its leaves.

A policy's figure is the expected score that its moves lose against the best one. A value's figure is the root mean square
error of the expected score, after one factor on its logits was fitted on the other half of the games: a value is calibrated
once it is trained, so the scale of a teacher must not count. The referee is a UCI engine. Without one it is the datasets'
evaluations or, last, the results of the games, which cannot rank policies.

Axes: N positions, M moves of one of them.
"""

import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from engine.board.position import TURN
from engine.cores import cores
from engine.encoding.planes import move_of
from engine.evaluation.cache import CachedEvaluator
from engine.evaluation.evaluator import Evaluator
from engine.evaluation.handwritten import evaluate
from engine.json_files import check, read_json
from engine.progress import Progress, Stop, Tick, never, silent
from engine.search import Root, Search, SearchConfig
from engine.selfplay.game import SearchResult, read_search
from pipeline.dataset.files.columns import BATCH_SENTINELS
from pipeline.dataset.files.schemas import Count, Schema
from pipeline.dataset.files.shards import publish_json
from pipeline.errors import Stopped
from pipeline.evaluation.intervals import clustered_mean
from pipeline.finetune.choice import (
    BARE,
    BEST_MOVE,
    EVALUATIONS,
    HAND_WRITTEN,
    IN_PLAY,
    OWN_SEARCH,
    Algorithm,
    Choice,
    choose,
    format_choice,
    hand_written_search,
)
from pipeline.finetune.config import default_explore
from pipeline.finetune.engine_scores import HeldOut, Scores, draw_held_out, expected_score, score_positions
from pipeline.finetune.state import GENERATIONS, FinetuneError
from pipeline.selfplay.config import ExploreConfig
from pipeline.storage.preflight import installed, is_installed
from pipeline.training.export import export_once

LOG = logging.getLogger(__name__)

POSITIONS = 400
"""Held-out positions that teachers are compared on."""
SEARCHES: tuple[tuple[Algorithm, int], ...] = (("puct", 64), ("puct", 256), ("gumbel", 64), ("gumbel", 256))
"""Searches of the network that are compared, unless the configuration sets one: algorithm and simulations."""
SIDE_BY_SIDE = 64
"""Trees that are searched together."""
CACHE_MIB = 256
EVALUATED = 0.95
"""Share of the positions from which on the datasets' evaluations teach, and are the referee where there is no engine."""
MAX_EXPECTED_SCORE = 0.999
"""Largest expected score that a factor is fitted to: proven values have infinite logits."""
LARGEST_FACTOR = 4.0
BISECTIONS = 40

TEACHERS = "teachers.json"
FORMAT_VERSION: Literal[1] = 1

Target = Literal["policy", "value"]
Rows = list[dict[str, Any]]


class Teachers(Schema):
    """teachers.json."""

    format_version: Literal[1]
    referee: Literal["engine", "evaluations", "results"]
    engine: str
    """The engine's command, "" without one."""
    positions: Count
    games: Count
    rows: list[dict[str, Any]]
    choice: Annotated[Choice, BeforeValidator(lambda found: Choice(**found) if isinstance(found, dict) else found)]

    @property
    def text(self) -> str:
        """Return the table and the choice in words."""
        return format_choice(self.rows, self.choice, self.referee, self.positions, self.games)


def choose_teachers(
    checkpoint: Path,
    human: Sequence[Path],
    config: ExploreConfig,
    out: Path,
    *,
    scored: Path | None = None,
    simulations: int,
    engine: str = "stockfish",
    progress: Progress = silent,
    stop: Stop = never,
) -> Teachers:
    """Compare teachers of a checkpoint that plays with `simulations`, choose, and write teachers.json into `out`.

    `engine` is the command of a UCI engine, which is the referee if it is installed. Its scores are kept in the folder
    `scored` (`out` by default), and used again for other checkpoints and after a kill. Raises FinetuneError, ConfigError
    without held-out positions, PlayerError, and Stopped.
    """
    held, scores = draw_held_out(human, POSITIONS), None
    if is_installed(engine):
        command = installed(tuple(shlex.split(engine)))
        scores = score_positions(held.fens, command, scored or out, progress, stop)
    network = _open(checkpoint, human, config.device, progress)
    teachers = collect_targets(network, config.search, simulations, held, progress, stop)
    rows, referee = score_targets(teachers, held, scores)
    content = {
        "format_version": FORMAT_VERSION,
        "referee": referee,
        "engine": engine if scores is not None else "",
        "positions": len(held.games),
        "games": len(np.unique(held.games)),
        "rows": rows,
        "choice": asdict(choose(rows)),
    }
    publish_json(out, TEACHERS, content)
    return Teachers.model_validate(content)


def read_teachers(out: Path) -> Teachers | None:
    """Read teachers.json, None if there is none; raises FinetuneError for an invalid file."""
    path = out / TEACHERS
    if not path.exists():
        return None
    found = read_json(path, FinetuneError)
    check(path, found, Teachers, FinetuneError, hint=": delete it to compare teachers again")
    return Teachers.model_validate(found)


def latest_teachers(loop: Path) -> Teachers | None:
    """Read the last comparison of a loop, None where there was none; raises FinetuneError for an invalid file."""
    found = sorted((loop / GENERATIONS).glob(f"*/{TEACHERS}"))
    return read_teachers(found[-1].parent) if found else None


def _open(checkpoint: Path, human: Sequence[Path], device: str, progress: Progress) -> Evaluator:
    """Return the network's evaluator; on a CPU in 8-bit integers, if it can be exported, which is fastest."""
    import torch

    from model.inference.evaluator import evaluator
    from model.inference.export import ExportError
    from model.inference.onnx_evaluator import open_export

    if device in ("cpu", "cuda") or (device == "auto" and torch.cuda.is_available()):
        return evaluator(checkpoint, device=device)
    try:
        export_once(checkpoint, human, progress)
    except ExportError as error:
        LOG.info("teachers are compared without 8-bit integers: %s", error)
        return evaluator(checkpoint, device="cpu")
    return open_export(checkpoint, threads=cores())


@dataclass(frozen=True, kw_only=True, slots=True)
class TeacherTargets:
    """Policies or values of one teacher for the positions."""

    target: Target
    name: str
    simulations: int
    """Simulations of the network, or of the hand-written player, for one position."""
    values: NDArray[np.float64] | None = None  # [N] expected scores for the mover
    policies: Sequence[Mapping[str, float]] | None = None  # [N] probabilities of moves in UCI notation


def collect_targets(
    network: Evaluator, search: SearchConfig, simulations: int, held: HeldOut, progress: Progress, stop: Stop
) -> list[TeacherTargets]:
    """Return the policies and values of the network, its searches and the hand-written player; raises Stopped.

    The references come first: for the policy the network as it plays, with `simulations` of PUCT; for the value the bare
    network. In place of the loop's default search, several algorithms and simulations are compared; a search that the user has
    set is the only one.
    """
    cached, names = CachedEvaluator(network, CACHE_MIB), {algorithm: name for name, algorithm in OWN_SEARCH.items()}
    searches = SEARCHES if search == default_explore().search else ((search.algorithm, search.simulations),)
    players: list[tuple[str, Evaluator, SearchConfig, int]] = [(IN_PLAY, cached, SearchConfig(), simulations)]
    players.append((BARE, cached, search, 0))
    players += [(names[one], cached, replace(search, algorithm=one), budget) for one, budget in searches]
    by_hand = hand_written_search(search)
    players.append((HAND_WRITTEN, evaluate, by_hand, by_hand.simulations))
    teachers = list[TeacherTargets]()
    for done, (name, evaluator, config, budget) in enumerate(players, 1):
        config = replace(config, simulations=max(1, budget), nodes=0)
        found = _search(evaluator, config, budget, held.positions, stop)
        teachers += _read_targets(name, budget, found, held)
        progress(Tick(done, len(players), "teachers compared"))
    return teachers


def _search(
    evaluator: Evaluator, config: SearchConfig, simulations: int, positions_NW: NDArray[np.uint64], stop: Stop
) -> list[tuple[Root, SearchResult]]:
    """Search positions as a generation does, without noise; 0 simulations only evaluate them."""
    found = []
    for first in range(0, len(positions_NW), SIDE_BY_SIDE):
        part = positions_NW[first : first + SIDE_BY_SIDE]
        search = Search(evaluator, config, games=len(part), seed=1)
        for slot, position in enumerate(part):
            search.start(slot, position, game=first + slot)
        search.run(simulations=simulations, noise=False, stop=stop)
        if stop():
            raise Stopped("stopped while teachers were compared")
        for slot, (label, promotion) in enumerate(zip(*map(np.ndarray.tolist, search.choose()), strict=True)):
            root = search.root(slot)
            found.append((root, read_search(root, label, promotion)))
    return found


def _read_targets(
    name: str, simulations: int, found: Sequence[tuple[Root, SearchResult]], held: HeldOut
) -> Iterator[TeacherTargets]:
    """Yield a player's policy, except the hand-written one's, and its values, except those of the network in play."""
    if name != HAND_WRITTEN:
        moves = ((result.labels, result.promotions, result.shares) for _, result in found)
        if name == BARE:
            moves = ((root.labels, root.promotions, root.priors) for root, _ in found)
        turns = (bool(position[TURN] == 0) for position in held.positions)
        policies = [_name_moves(*one, turn) for one, turn in zip(moves, turns, strict=True)]
        if name == IN_PLAY:
            policies = [{max(policy, key=policy.__getitem__): 1.0} for policy in policies]
        yield TeacherTargets(target="policy", name=name, simulations=simulations, policies=policies)
    if name == IN_PLAY:
        return
    roots = np.array([root.value for root, _ in found])
    best = np.array([result.best_value for _, result in found])
    parts = {name: roots} if name == BARE else {f"{name}: root": roots, f"{name}: {BEST_MOVE}": best}
    for part, values_N in parts.items():
        yield TeacherTargets(target="value", name=part, simulations=simulations, values=(values_N + 1.0) / 2.0)


def _name_moves(
    labels_M: NDArray[np.uint16], promotions_M: NDArray[np.uint8], weights_M: NDArray[np.float32], turn: bool
) -> dict[str, float]:
    """Return the probabilities of moves in UCI notation, in proportion to weights."""
    shares_M = weights_M.astype(np.float64) / weights_M.sum(dtype=np.float64)
    moves = zip(labels_M.tolist(), promotions_M.tolist(), shares_M.tolist(), strict=True)
    return {move_of(label, promotion, turn).uci(): share for label, promotion, share in moves}


def score_targets(
    teachers: Sequence[TeacherTargets], held: HeldOut, scores: Sequence[Scores] | None
) -> tuple[Rows, str]:
    """Compare teachers with a referee; return a row per teacher and the referee's name.

    `scores` are an engine's, None without one. Differences are from the first teacher of a target. Where nearly all positions
    have evaluations, these are a teacher too, since human rows contain them.
    """
    known_N = held.evals != BATCH_SENTINELS["eval"]
    evaluated, evals_N = known_N.mean() >= EVALUATED, expected_score(held.evals.astype(np.float64))
    used_N = known_N if evaluated else np.ones(len(known_N), dtype=np.bool_)
    if evaluated:
        teachers = [*teachers, TeacherTargets(target="value", name=EVALUATIONS, simulations=0, values=evals_N)]
    if scores is not None:
        referee, truth_N = "engine", np.array([max(one.values()) for one in scores])
    elif evaluated:
        referee, truth_N = "evaluations", evals_N
    else:
        referee, truth_N = "results", (held.results + 1.0) / 2.0
    rows, first = Rows(), dict[str, NDArray[np.float64]]()
    for teacher in sorted(teachers, key=lambda teacher: teacher.target):
        row: dict[str, Any] = {"target": teacher.target, "teacher": teacher.name, "simulations": teacher.simulations}
        games_N, factor, loss_N = held.games, None, None
        if teacher.values is not None:
            games_N = held.games[used_N]
            factor, error_N = calibrated_errors(teacher.values[used_N], truth_N[used_N], games_N)
            loss_N = np.square(error_N) if referee == "results" else _make_root(error_N)
        elif scores is not None and teacher.policies is not None:
            loss_N = np.array([_loss(one, by) for one, by in zip(teacher.policies, scores, strict=True)])
        row |= {"figure": None, "difference": None, "low": None, "high": None, "factor": factor}
        if loss_N is not None:
            first.setdefault(teacher.target, loss_N)
            found = (float(loss_N.mean()), *clustered_mean(loss_N - first[teacher.target], games_N))
            rounded = (None if number is None else round(number, 4) for number in found)
            row |= dict(zip(("figure", "difference", "low", "high"), rounded, strict=True))
        rows.append(row)
    return rows, referee


def _loss(policy: Mapping[str, float], scores: Scores) -> float:
    """Return the expected score that a move sampled from a policy loses against the best move."""
    return max(scores.values()) - sum(share * scores[move] for move, share in policy.items())


def _make_root(error_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """Linearize the root mean square of errors: return numbers whose mean it is, and whose spread gives its interval."""
    root = max(float(np.sqrt(np.square(error_N).mean())), 1e-9)
    return np.square(error_N) / (2 * root) + root / 2


def calibrated_errors(
    values_N: NDArray[np.float64], truth_N: NDArray[np.float64], games_N: NDArray[np.uint64]
) -> tuple[float, NDArray[np.float64]]:
    """Return the factor fitted on all games, and errors where each half of the games uses the factor of the other half."""
    clipped_N = np.clip(values_N, 1 - MAX_EXPECTED_SCORE, MAX_EXPECTED_SCORE)
    logits_N = np.log(clipped_N / (1 - clipped_N))
    half_N = np.unique(games_N, return_inverse=True)[1] % 2 == 0
    error_N = np.empty(len(values_N))
    for mine_N in (half_N, ~half_N):
        factor = fit_factor(logits_N[~mine_N], truth_N[~mine_N])
        error_N[mine_N] = 1 / (1 + np.exp(-factor * logits_N[mine_N])) - truth_N[mine_N]
    return round(fit_factor(logits_N, truth_N), 3), error_N


def fit_factor(logits_N: NDArray[np.float64], truth_N: NDArray[np.float64]) -> float:
    """Return the factor of logits, from 0 to LARGEST_FACTOR, that makes true scores likeliest; without data, the largest."""
    low, high = 0.0, LARGEST_FACTOR
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        slope = float(((1 / (1 + np.exp(-middle * logits_N)) - truth_N) * logits_N).sum())
        low, high = (low, middle) if slope > 0 else (middle, high)
    return (low + high) / 2
