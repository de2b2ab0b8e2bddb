"""A network's policy in any view and vocabulary, converted to logits by the mover's labels.

Axes: B batch, A index of the preset's vocabulary, L label (4096), F from-square, T to-square.
"""

import torch
from torch import Tensor

from engine.encoding.move_vocabularies import NONE, UNDER_PROMOTIONS, Vocabulary, vocabulary
from engine.encoding.planes import LABELS
from engine.encoding.views import view
from model.data.planes import black, promoting, table
from model.network.heads import Policy
from model.network.preset import Preset


def flatten_policy(policy: Policy) -> Tensor:
    """Return logits `[B, A]`; for a factored pair, log p(from) + log p(to | from) of each pair of
    squares.
    """
    if isinstance(policy, Tensor):
        return policy.float()
    from_BF, to_BFT = policy
    return (from_BF.float().log_softmax(1)[:, :, None] + to_BFT.float().log_softmax(2)).flatten(1)


def marro_logits(preset: Preset, policy: Policy, bytes_BPY: Tensor) -> Tensor:
    """Return logits float32 `[B, L]` by the labels of the mover's view, from the stored planes'
    bytes `[B, 77, Y]`.

    A label means a promotion to any piece, so where its pawn can promote, its logit is the
    log-sum-exp over the pieces. Labels that leave the board are minus infinity where the vocabulary
    has no index for them.
    """
    moves, logits_BA = vocabulary(preset.moves), flatten_policy(policy)
    if view(preset.view).absolute:
        turned_A = table("turned", moves.name, logits_BA.device)
        logits_BA = torch.where(black(bytes_BPY)[:, None], logits_BA[:, turned_A], logits_BA)
    if moves.name == "marro4096":
        return logits_BA
    index_L = table("index", moves.name, logits_BA.device)[:, 0]
    logits_BL = logits_BA[:, index_L.clamp(min=0)].masked_fill(index_L == NONE, float("-inf"))
    return (
        _add_under_promotions(moves, logits_BL, logits_BA, bytes_BPY)
        if moves.under_promotions
        else logits_BL
    )


def _add_under_promotions(
    moves: Vocabulary, logits_BL: Tensor, logits_BA: Tensor, bytes_BPY: Tensor
) -> Tensor:
    """Add each label's under-promotions to its logit, where an own pawn can make them."""
    every_L = torch.arange(LABELS, device=logits_BL.device)
    can_BL = promoting(bytes_BPY, every_L)
    parts = [logits_BL]
    for piece in UNDER_PROMOTIONS:
        index_L = table("index", moves.name, logits_BL.device)[:, piece]
        none_BL = ~can_BL | (index_L == NONE)
        parts.append(logits_BA[:, index_L.clamp(min=0)].masked_fill(none_BL, float("-inf")))
    return torch.stack(parts).logsumexp(0)
