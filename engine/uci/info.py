"""The protocol's output: the `info` lines of a player's moves."""

from engine.evaluation.score import centipawns
from engine.player import Play
from engine.player.lines import win_draw_loss


def format_score(value: float, plies: int) -> str:
    """Write a score: `mate` in moves if `plies` to a mate are proven, else `cp`.

    Negative: the mover is mated.
    """
    if plies:
        return f"mate {(plies + 1) // 2 if plies > 0 else -(-plies // 2)}"
    return f"cp {centipawns(value)}"


def format_wdl(value: float, draw: float) -> str:
    """Write win, draw and loss in thousandths that sum to 1000; `value` is win minus loss."""
    win, drawn, _ = win_draw_loss(value, draw)
    wins = round(1000 * win)
    draws = min(round(1000 * drawn), 1000 - wins)
    return f"{wins} {draws} {1000 - wins - draws}"


def format_play(play: Play, depth: int, seconds: float, lines: int, show_wdl: bool) -> list[str]:
    """Write an `info` line for each of the best `lines` moves, all of one `depth`.

    A tree has no single depth. Programs show several lines only where their depth is the same and
    does not fall, so the caller gives the length of the longest best variation so far (as in
    CrazyAra, of each line).
    """
    nodes = max(play.simulations, 1)
    cost = f"nodes {nodes} nps {round(nodes / max(seconds, 1e-3))} time {round(seconds * 1000)}"
    full = f"hashfull {min(round(1000 * play.full), 1000)}"
    said = []
    for place, line in enumerate(play.moves[:lines], 1):
        wdl = f" wdl {format_wdl(line.value, line.draw)}" if show_wdl else ""
        pv = " ".join(move.uci() for move in line.variation)
        said.append(
            f"info depth {depth} seldepth {max(play.seldepth, depth)} multipv {place}"
            f" score {format_score(line.value, line.mate)}{wdl} {cost} {full} pv {pv}"
        )
    return said
