"""What a network costs: parameters, arithmetic for each position, and positions a second on this machine.

Axes: B batch.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import chess
import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from engine.board.movegen import legal_planes
from engine.board.position import castling_bits, en_passant_file, from_board
from engine.encoding.planes import PLANES, label_of
from engine.encoding.views import NO_LAST_MOVE, last_moves, view
from engine.evaluation.move_features import FACTS
from model.data.inputs import Batch, inputs
from model.data.outputs import flat
from model.inference.evaluator import NetworkEvaluator
from model.network.conditioning import CONDITIONS, width
from model.network.network import Network, build, parameters, parts_read
from model.network.preset import Preset
from model.training.objective.losses import VALUE_FORMS
from model.training.objective.policy_losses import policy_terms
from model.training.precision import autocast, device_for, dtype_for

Read = Tensor | dict[str, Tensor]
PROMOTING = "r3k2r/1P4P1/8/8/8/8/1p4p1/R3K2R w KQkq - 0 1"
"""Where pawns of both sides are about to promote in every way."""
USUAL_MOVES = 30
"""Legal moves of a position in the count of operations: 29 in rapid games on average."""
ROUNDS = 3
"""Fewest calls that a rate is the median of."""


def blank(preset: Preset) -> Read:
    """Make one position's inputs, all zeros."""
    shapes = {
        "planes": torch.zeros(1, view(preset.view).planes, 8, 8),
        "conditions": torch.zeros(1, width(CONDITIONS[preset.condition])),
        "moves": torch.zeros(USUAL_MOVES, dtype=torch.int64),
        "facts": torch.zeros(USUAL_MOVES, len(FACTS), dtype=torch.uint8),
    }
    read = {name: shapes[name] for name in parts_read(preset)}
    return read if len(read) > 1 else read["planes"]


def size(preset: Preset) -> dict[str, int]:
    """Count a preset's `parameters`, and `flops` of a forward pass for one position (a multiply-add is two).

    Counted are convolutions and matrix products; nothing is computed.
    """
    with FakeTensorMode(), FlopCounterMode(display=False) as counter:
        network = Network(preset).eval()
        network(blank(preset))
    return {"parameters": parameters(network), "flops": counter.get_total_flops()}


def playout_rows(count: int, seed: int = 0) -> dict[str, Any]:
    """Make rows as shards hold them, of games of random moves, players and clocks: for measuring, and for tests.

    Half the moves are captures or promotions where there are any, and every other game begins with pawns about to
    promote, so that every kind of move is met. One row in four has no ratings, one in four no clock. Results are of the
    material on the board at the row.
    """
    random = np.random.default_rng(seed)
    rows: dict[str, list[Any]] = {}
    board, game, first = chess.Board(), 0, 0
    for number in range(count):
        if number - first >= 80 or not any(board.legal_moves):
            game, first = game + 1, number
            board = chess.Board(PROMOTING if game % 2 else chess.STARTING_FEN)
        legal = list(board.legal_moves)
        sharp = [move for move in legal if move.promotion or board.is_capture(move)]
        some = sharp if sharp and random.random() < 0.5 else legal
        move = some[int(random.integers(len(some)))]
        for name, value in _row(board, move, game, number - first, random).items():
            rows.setdefault(name, []).append(value)
        board.push(move)
    return {name: np.array(values) for name, values in rows.items()}


def _row(board: chess.Board, move: chess.Move, game: int, ply: int, random: np.random.Generator) -> dict[str, Any]:
    position = from_board(board)
    planes_P = np.zeros(PLANES, dtype=np.uint64)
    legal_planes(position, planes_P)
    own, theirs = board.occupied_co[board.turn].bit_count(), board.occupied_co[not board.turn].bit_count()
    rated, timed = random.random() < 0.75, random.random() < 0.75
    return {
        "planes": planes_P,
        "label": np.uint16(label_of(move, board.turn)),
        "promotion": np.uint8(move.promotion or 0),
        "castling": np.uint8(castling_bits(position)),
        "last_move": last_moves(np.array([label_of(board.peek(), not board.turn)]))[0]
        if board.move_stack
        else NO_LAST_MOVE,
        "ep_file": np.uint8(en_passant_file(position)),
        "halfmove": np.uint8(min(board.halfmove_clock, 255)),
        "repetition": np.uint8(0),
        "result": np.int8((own > theirs) - (own < theirs)),
        "ply": np.uint16(ply),
        "plies": np.uint16(ply + 1 + int(random.integers(80))),
        "game": np.uint32(game),
        "elo": np.uint16(random.integers(700, 2800) if rated else 0),
        "opponent_elo": np.uint16(random.integers(700, 2800) if rated else 0),
        "clock": np.uint16(random.integers(0, 1200) if timed else 65535),
        "base": np.uint16(600),
        "increment": np.uint8(5),
    }


def _rate(step: Callable[[], object], rows: int, seconds: float) -> float:
    """Call for at least some seconds after one call to warm up; give rows a second by the median call."""
    step()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < ROUNDS or time.perf_counter() - began < seconds:
        before = time.perf_counter()
        step()
        times.append(time.perf_counter() - before)
    return rows / statistics.median(times)


def loss_of(network: Network, batch: Batch, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Give the mean of the policy's cross-entropy among legal moves and the value's loss."""
    preset = network.preset
    data = inputs(batch, preset, device, dtype)
    with autocast(device, dtype):
        policy, value_BV, *_ = network(data.read)
    policy_B, _ = policy_terms(flat(policy), data.legal, data.labels)
    return (policy_B + VALUE_FORMS[preset.value].loss(value_BV, data.results)).mean()


def rates(preset: Preset, *, batch_size: int = 256, seconds: float = 2.0, device: str = "auto") -> dict[str, float]:
    """Measure positions a second: `inference` as an evaluator is called, `training` as a plain AdamW step is taken.

    Both begin with packed rows in memory; averaging of weights and reading of shards are not in them.
    """
    where = device_for(device)
    dtype = dtype_for("auto", where)
    batch = playout_rows(batch_size)
    network = build(preset, seed=0).to(where)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(network, batch, where, dtype).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if where.type == "cuda":
            torch.cuda.synchronize()

    training = _rate(step, batch_size, seconds)
    called = NetworkEvaluator(network, device=device)
    return {"training": training, "inference": _rate(lambda: called(batch["planes"]), batch_size, seconds)}
