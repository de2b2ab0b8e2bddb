"""Decode the trunk's output into a `Prediction`.

    trunk -> policy head, plus a score for each legal move -> logits in the preset's vocabulary
          -> `order_by_label`: logits in the order of labels
    trunk -> value head -> `log_wdl`: log-probabilities of win, draw, loss
    trunk -> moves-left head

The order of a prediction's logits is the same for all presets: first the 4096 labels; then 72
under-promotions, if the vocabulary has them, by piece, direction and file; last the indices that no
move uses. Every index of the vocabulary is kept, so the total probability does not change.

Axes: B batch, C channels, Y row, X column, A logit (all indices), L label (4096), U promoting label
(24: direction, file), M legal moves of all rows, F from-square, T to-square or type of move, P
plane, V outputs of the value head.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from engine.board.movegen import MOVE_PLANES, MOVE_TYPES
from engine.board.position import PAWN
from engine.encoding.move_vocabularies import (
    NO_MOVE_INDEX,
    UNDER_PROMOTIONS,
    find_indices,
    vocabulary,
)
from engine.encoding.planes import LABELS, TURN_PLANE, steps
from engine.encoding.views import view
from model.network.blocks import ACTIVATIONS, SQUARES, Float32, Norm, board_mean, conv3
from model.network.encoder import (
    ENCODED_FEATURES,
    Moves,
    list_bit_numbers,
    list_squares,
    to_tensor,
)
from model.network.preset import Preset

PROMOTING_LABELS = 24
"""Number of promoting labels: three directions from each of eight files."""
UNDER_PROMOTION_COUNT = len(UNDER_PROMOTIONS) * PROMOTING_LABELS
"""Number of under-promotions, which follow the 4096 labels."""


class Prediction(NamedTuple):
    """The output of a network, for the side to move."""

    logits: Tensor
    """Policy logits in the order of labels, float32 `[B, A]`."""
    wdl: Tensor
    """Log-probabilities of win, draw and loss, float32 `[B, 3]`. With a tanh value head the draw is
    minus infinity; without a value head all three are equal."""
    plies_left: Tensor | None = None
    """Half-moves to the end of the game, float32 `[B]`, if the preset predicts them."""


@cache
def label_order(name: str) -> NDArray[np.int64]:
    """Return the vocabulary index of each logit in the order of labels, int64 `[A]`.

    This is a permutation: first the indices of the 4096 labels, then those of the under-promotions,
    if the vocabulary has them. Labels that are no move get unused indices; the rest come last.
    """
    moves = vocabulary(name)
    order_A = np.full(moves.size, NO_MOVE_INDEX, dtype=np.int64)
    order_A[:LABELS] = moves.index[:, 0]
    if moves.under_promotions:
        planes = LABELS + 64 * np.arange(UNDER_PROMOTION_COUNT // 8)  # by piece and direction
        order_A[LABELS : LABELS + UNDER_PROMOTION_COUNT] = (
            planes[:, None] + np.arange(8, 16)
        ).ravel()
    order_A[order_A == NO_MOVE_INDEX] = np.setdiff1d(np.arange(moves.size), order_A)
    return order_A


def index_labels(
    preset: Preset, labels_B: NDArray[np.integer], promotions_B: NDArray[np.integer] | None = None
) -> NDArray[np.int64]:
    """Return the indices of moves among a prediction's logits, int64 `[B]`.

    Raises MoveIndexError for a move that the vocabulary lacks.
    """
    moves = vocabulary(preset.moves)
    if promotions_B is None or not moves.under_promotions:
        promotions_B = np.zeros(len(labels_B), dtype=np.int64)
    index_B = find_indices(moves, np.zeros(len(labels_B), np.bool_), labels_B, promotions_B)
    position_A: NDArray[np.int64] = np.argsort(label_order(preset.moves))
    return position_A[index_B]


@cache
def _label_orders(moves: str, device: torch.device) -> Tensor:
    """Return `label_order` for the mover's view and for the mirrored board, int64 `[2, A]`."""
    order_A = label_order(moves)
    return to_tensor(np.stack((order_A, vocabulary(moves).turned[order_A]))).to(device)


@cache
def _promoting_labels(device: torch.device) -> Tensor:
    """Return the labels of pawn moves to the last rank, by direction and file, int64 `[U]`."""
    types = {step: move_type for move_type, step in enumerate(steps())}
    labels = [types[file, 1] * 64 + square for file in (-1, 0, 1) for square in range(8, 16)]
    return torch.tensor(labels, device=device)


def _can_promote(bytes_BPY: Tensor) -> Tensor:
    """Return whether a pawn is on the from-square of each promoting label, bool `[B, U]`."""
    pawns_BX = (bytes_BPY[:, PAWN, 1, None] >> list_bit_numbers(bytes_BPY.device)) & 1
    return pawns_BX.bool().repeat(1, 3)


def legal_labels(bytes_BPY: Tensor, size: int = LABELS) -> Tensor:
    """Return which labels are legal moves, bool `[B, A]`, from planes as bytes `[B, P, Y]`.

    `size` is A, the number of a preset's logits.
    """
    moves_BTY = bytes_BPY[:, MOVE_PLANES : MOVE_PLANES + MOVE_TYPES].contiguous()
    bits_BTYX = (moves_BTY[..., None] >> list_bit_numbers(bytes_BPY.device)) & 1
    legal_BL = bits_BTYX.view(torch.bool).view(-1, LABELS)
    if size == LABELS:
        return legal_BL
    under_BU = legal_BL[:, _promoting_labels(bytes_BPY.device)] & _can_promote(bytes_BPY)
    never_B = legal_BL.new_zeros(legal_BL.shape[0], size - LABELS - UNDER_PROMOTION_COUNT)
    return torch.cat((legal_BL, under_BU.repeat(1, len(UNDER_PROMOTIONS)), never_B), 1)


def order_by_label(preset: Preset, logits_BA: Tensor, bytes_BPY: Tensor) -> Tensor:
    """Reorder logits from the preset's vocabulary and view to the order of labels."""
    is_absolute = view(preset.view).is_absolute
    if preset.moves == "marro4096" and not is_absolute:
        return logits_BA
    orders_2A = _label_orders(preset.moves, logits_BA.device)
    if not is_absolute:
        return logits_BA.index_select(1, orders_2A[0])
    black_B1 = (bytes_BPY[:, TURN_PLANE, 0] != 0)[:, None]
    return logits_BA.gather(1, torch.where(black_B1, orders_2A[1], orders_2A[0]))


def merge_promotions(logits_BA: Tensor, bytes_BPY: Tensor) -> Tensor:
    """Return the logits of the labels, `[B, L]`; a promotion is the log-sum-exp over its pieces."""
    logits_BL = logits_BA[:, :LABELS]
    if logits_BA.shape[1] == LABELS:
        return logits_BL
    labels_U = _promoting_labels(logits_BA.device)
    queen_BU = logits_BL[:, labels_U]
    under = logits_BA[:, LABELS : LABELS + UNDER_PROMOTION_COUNT].chunk(len(UNDER_PROMOTIONS), 1)
    every_BU = torch.stack((queen_BU, *under)).logsumexp(0)
    merged_BU = torch.where(_can_promote(bytes_BPY), every_BU, queen_BU)
    return logits_BL.index_copy(1, labels_U, merged_BU)


def flatten_policy(policy: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    """Return logits `[B, A]`; a factored policy gives log p(from) + log p(to | from)."""
    if isinstance(policy, Tensor):
        return policy.float()
    from_BF, to_BFT = policy
    return (from_BF.float().log_softmax(1)[:, :, None] + to_BFT.float().log_softmax(2)).flatten(1)


def log_wdl(value_head: str, value_BV: Tensor) -> Tensor:
    """Convert a value head's outputs to log-probabilities of win, draw, loss, float32 `[B, 3]`.

    A `wdl` head outputs three logits. A `tanh` head outputs one number x: the score is tanh x, so
    the probability of a win is (1 + tanh x) / 2 and that of a draw 0. For `none`, each is 1/3.
    """
    if value_head == "none":
        return value_BV.new_full((value_BV.shape[0], 3), -float(np.log(3)), dtype=torch.float32)
    value_BV = value_BV.float()
    if value_head == "wdl":
        return value_BV.log_softmax(1)
    win_B, loss_B = F.logsigmoid(2 * value_BV[:, 0]), F.logsigmoid(-2 * value_BV[:, 0])
    return torch.stack((win_B, torch.full_like(win_B, float("-inf")), loss_B), 1)


def _hidden_layers(preset: Preset) -> list[nn.Module]:
    """Return the layers of a policy head's hidden 3x3 convolution; [] for policy_width 0."""
    channels, activation = preset.policy_width, ACTIVATIONS[preset.activation]
    return [conv3(preset.width, channels), Norm(channels), activation()] if channels else []


def planes_policy(preset: Preset) -> nn.Module:
    """Build a policy head with one plane of from-squares for each type of move."""
    hidden = _hidden_layers(preset)  # built first: the order determines the initial weights
    last = nn.Conv2d(preset.policy_width or preset.width, vocabulary(preset.moves).planes, 1)
    return nn.Sequential(*hidden, Float32(last), nn.Flatten())


def linear_policy(preset: Preset) -> nn.Module:
    """Build a policy head from a 1x1 bottleneck and a linear layer to all indices."""
    bottleneck = _bottleneck(preset, preset.policy_width)
    last = nn.Linear(preset.policy_width * SQUARES, vocabulary(preset.moves).size)
    return nn.Sequential(*bottleneck, nn.Flatten(), Float32(last))


class FactoredPolicy(nn.Module):
    """Policy head with logits of the from-square, and of the to-square given the from-square."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.hidden = nn.Sequential(*_hidden_layers(preset))
        self.planes = Float32(nn.Conv2d(preset.policy_width or preset.width, 1 + SQUARES, 1))

    def forward(self, x_BCYX: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of the from-square, `[B, F]`, and of the to-square, `[B, F, T]`."""
        planes_BPS = self.planes(self.hidden(x_BCYX)).flatten(2)
        return planes_BPS[:, 0], planes_BPS[:, 1:]


class Comparison(nn.Module):
    """Correct the scores of legal moves by comparing each move with the position's average move.

    A move's weight in the average is the softmax of its score.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.others = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        last = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(last.weight)  # the corrections are zero at first
        self.weight = Float32(last)

    def forward(self, hidden_MC: Tensor, scores_M: Tensor, moves: Moves, rows: int) -> Tensor:
        """Return the corrections to add to the scores, `[M]`."""
        powers_M1 = scores_M.clamp(-20, 20).exp()[:, None] * moves.mask
        mean_BC = hidden_MC.new_zeros((rows, hidden_MC.shape[1]), dtype=torch.float32)
        mean_BC = mean_BC.index_add(0, moves.rows, powers_M1 * hidden_MC)
        totals_B1 = powers_M1.new_zeros((rows, 1)).index_add(0, moves.rows, powers_M1)
        mean_BC = mean_BC / totals_B1.clamp(min=1e-9)
        others_MC = self.others(mean_BC).index_select(0, moves.rows)
        correction_M: Tensor = self.weight(F.relu(self.own(hidden_MC) + others_MC)).squeeze(1)
        return correction_M


class MoveHead(nn.Module):
    """Score each legal move from its features, its type, and the trunk at both of its squares."""

    def __init__(self, preset: Preset) -> None:
        super().__init__()
        self.sources, self.targets = (
            nn.Conv2d(preset.width, preset.move_features_width, 1, bias=False) for _ in range(2)
        )
        self.move_features = nn.Linear(ENCODED_FEATURES, preset.move_features_width)
        self.kinds = nn.Embedding(MOVE_TYPES, preset.move_features_width)
        self.weight = Float32(nn.Linear(preset.move_features_width, 1))
        nn.init.normal_(self.kinds.weight, std=0.1)
        self.compare = Comparison(preset.move_features_width)

    def forward(self, logits_BA: Tensor, x_BCYX: Tensor, moves: Moves) -> Tensor:
        """Return logits `[B, A]` with each legal move's score added."""
        hidden_MC = list_squares(self.sources(x_BCYX)).index_select(0, moves.sources)
        hidden_MC = hidden_MC + list_squares(self.targets(x_BCYX)).index_select(0, moves.targets)
        kinds_MC = self.kinds.weight.index_select(0, moves.kinds)
        hidden_MC = F.relu(hidden_MC + self.move_features(moves.features) + kinds_MC)
        scores_M = self.weight(hidden_MC).squeeze(1)
        rows = logits_BA.shape[0]  # unlike len(), this stays dynamic in an export
        scores_M = scores_M + self.compare(hidden_MC, scores_M, moves, rows)
        scores_M = scores_M * moves.mask[:, 0]
        return logits_BA.flatten().index_add(0, moves.logit_indices, scores_M).view_as(logits_BA)


class BoardMean(nn.Module):
    """The layer form of `board_mean`."""

    def forward(self, x_BCYX: Tensor) -> Tensor:
        """Average each channel of `[B, C, Y, X]` over the board, `[B, C]`."""
        return board_mean(x_BCYX)


class PliesLeft(nn.Module):
    """Map a real number to a positive number of half-moves; 0 maps to 40."""

    def forward(self, x: Tensor) -> Tensor:
        """Return half-moves, in the shape of the input."""
        return F.softplus(x) * (40 / 0.6931)  # softplus(0) is log 2 = 0.6931


def _bottleneck(preset: Preset, channels: int) -> list[nn.Module]:
    convolution = nn.Conv2d(preset.width, channels, 1, bias=False)
    return [convolution, Norm(channels), ACTIVATIONS[preset.activation]()]


def value_head(preset: Preset, outputs: int) -> nn.Module:
    """Build a value head: 1x1 convolution, neck, hidden layer, and a layer of `outputs` units."""
    pools = preset.value_neck == "pool"
    neck = BoardMean() if pools else nn.Flatten()
    size = preset.value_width * (1 if pools else SQUARES)
    return nn.Sequential(
        *_bottleneck(preset, preset.value_width),
        neck,
        nn.Linear(size, preset.value_hidden),
        ACTIVATIONS[preset.activation](),
        Float32(nn.Linear(preset.value_hidden, outputs)),
    )


def moves_left_head(preset: Preset) -> nn.Module:
    """Build a head that predicts the half-moves left in the game, `[B, 1]`."""
    bottleneck = _bottleneck(preset, preset.moves_left)
    last = Float32(nn.Linear(preset.moves_left * SQUARES, 1))
    return nn.Sequential(*bottleneck, nn.Flatten(), last, PliesLeft())
