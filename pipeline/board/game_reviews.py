"""Review many games of one player: mistakes by kind and phase, openings, and time trouble.

The network scores each position without a search. Where a move of the player seems to lose, a
search of the positions before and after it decides. Games with [%eval] comments keep these scores.

Axes: M legal moves, F move features.
"""

import io
import math
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

import chess
import chess.pgn
import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from engine.encoding.planes import LABELS, label_of, planes_of
from engine.evaluation.move_features import LEAVES, RISKS, TAKES, legal_move_features
from engine.player import Play
from model.inference.player import Player
from pipeline.board import scores
from pipeline.board.game import GameError, check_game, number_moves, rating_in, read_next
from pipeline.board.lichess import MAX_GAMES
from pipeline.board.review import name_game
from pipeline.storage.tables import aligned

SIMULATIONS = 24
"""Simulations of each position before and after a suspected mistake."""
SUSPICION = 0.08
"""Loss by the network's values alone from which on a move is searched."""
BATCH = 64
"""Positions per batch; the network is free for other requests between batches."""
MAX_READ = 2 * MAX_GAMES
"""Games read in search of MAX_GAMES that can be reviewed."""
WON, PIECE = 0.75, 20
"""Expected score of a won position, and two pawns in tens of centipawns (move features)."""
OPENING_PLIES, ENDGAME_PIECES = 24, 6
MIN_OPENING_GAMES, MAX_OPENINGS, MAX_MISTAKES, MAX_EXAMPLES = 5, 12, 10, 5
SHORT_OF_TIME, TIMES = 0.1, ("short", "other")
"""Share of the starting time below which time is short, and the names of moves by time."""
KINDS = {
    "missed a mate": "The search proves a mate, and the move played keeps no win.",
    "allowed a mate": "After the move, the search proves a mate for the opponent.",
    "left a piece hanging": "After the move, the opponent wins two pawns or more by captures on one"
    " square, beyond what the move itself took.",
    "missed a capture": "The best move wins two pawns or more by captures on one square; the move"
    " played does not.",
    "let a win slip": f"The expected score falls from at least {WON} to less.",
    "other": "Any other mistake: a longer tactic, or the position.",
}
"""Kinds of mistakes with their definitions; a mistake belongs to the first that fits."""
DEFINITIONS = (
    f"A mistake loses more than {scores.BLUNDER} of the expected score, with a mate counted as ten"
    f" pawns. The opening lasts 12 moves; in an endgame at most {ENDGAME_PIECES} pieces are left"
    " besides kings and pawns; the middlegame lies between."
)
Row = dict[str, Any]


class GamesRequest(BaseModel):
    """Games of a player to review."""

    model_config = ConfigDict(extra="forbid")

    pgn: str
    name: Annotated[str, Field(max_length=100)] = ""
    """The player, as in the tags; "" for the most frequent one."""
    network: str = ""


@dataclass(frozen=True, slots=True)
class OwnGame:
    """A game from the player's side."""

    index: int
    game: chess.pgn.Game
    color: chess.Color

    def tag(self, name: str) -> str:
        """Return a tag, or "" if it is unknown."""
        return self.game.headers.get(name, "").strip("?")

    @property
    def score(self) -> float | None:
        """The player's score, 0 to 1; None if the game has no result."""
        white = {"1-0": 1.0, "1/2-1/2": 0.5, "0-1": 0.0}.get(self.tag("Result"))
        return white if white is None or self.color else 1 - white

    @property
    def expected(self) -> float | None:
        """The score that the ratings predict; None if one is unknown."""
        own, other = (
            rating_in(self.game, chess.COLOR_NAMES[side]) for side in (self.color, not self.color)
        )
        return None if own is None or other is None else 1 / (1 + 10 ** ((other - own) / 400))

    @property
    def opening(self) -> str:
        """The opening's name without its variation, or else the first four half-moves."""
        if name := self.tag("Opening"):
            return name.partition(":")[0][:80]
        moves = list(self.game.mainline_moves())[:4]
        return " ".join(number_moves(moves, self.game.board()))


@dataclass(slots=True)
class Totals:
    """Figures of the games reviewed so far."""

    mistakes: list[Row] = field(default_factory=list)
    moves: Counter[bool] = field(default_factory=Counter)
    """The player's moves with a known clock, by whether time was short."""
    games: list[OwnGame] = field(default_factory=list)


def review_games(
    request: GamesRequest,
    player: Player,
    turns: AbstractContextManager[Any] = nullcontext(),  # noqa: B008 - it holds nothing
) -> Generator[Row, None, None]:
    """Yield the header, then after each game the number done and the summary so far.

    Raises GameError if no game can be read. The lock `turns` is held for a batch at a time.
    """
    games, skipped = _read_games(request.pgn)
    name = request.name or _most_frequent(games)
    own = [
        OwnGame(index, game, side.casefold() == "white")
        for index, game in enumerate(games)
        for side in ("White", "Black")
        if game.headers.get(side, "").casefold() == name.casefold()
    ]
    if not own:
        raise GameError(f"{name!r} played none of these {len(games)} games: check the name")
    yield {"header": _make_header(name, games, own, skipped)}
    totals = Totals()
    for done, one in enumerate(own, 1):
        totals.mistakes += _find_mistakes(one, player, turns, totals)
        totals.games.append(one)
        yield {"done": done, "of": len(own)} | (
            {"summary": summarize(totals)} if done % 10 == 0 or done == len(own) else {}
        )


def _read_games(text: str) -> tuple[list[chess.pgn.Game], Counter[str]]:
    """Return the games that can be reviewed, and the number of the others by reason."""
    stream = io.StringIO(text.lstrip("\ufeff \n\r\t"))
    games: list[chess.pgn.Game] = []
    skipped = Counter[str]()
    for _ in range(MAX_READ):
        if len(games) == MAX_GAMES or (game := read_next(stream)) is None:
            break
        try:
            games.append(check_game(game))
        except GameError as error:
            skipped[str(error).partition(":")[0]] += 1
    if not games:
        raise GameError("this text contains no game of standard chess: paste games in PGN")
    if read_next(stream) is not None:
        skipped[f"only the first {MAX_GAMES} games are reviewed"] += 1
    return games, skipped


def _most_frequent(games: Sequence[chess.pgn.Game]) -> str:
    names = Counter(game.headers.get(side, "?") for game in games for side in ("White", "Black"))
    names.pop("?", None)
    if not names:
        raise GameError("the games do not name their players: add the tags White and Black")
    return names.most_common(1)[0][0]


def _make_header(
    name: str, games: Sequence[chess.pgn.Game], own: Sequence[OwnGame], skipped: Counter[str]
) -> Row:
    kept = [
        {
            "title": name_game(game),
            "start": game.board().fen(),
            "moves": [move.uci() for move in game.mainline_moves()],
            "tags": {key: value[:80] for key, value in game.headers.items()},
        }
        for game in games
    ]
    notes = [f"{reason} ({count})" for reason, count in skipped.items()]
    others = len(games) - len({one.index for one in own})
    notes += [f"{others} games of other players are left out"] if others else []
    about = f"{DEFINITIONS} Openings are compared with the score that both ratings predict."
    return {
        "player": name[:100],
        "games": kept,
        "about": about,
        "kinds": KINDS,
        "notes": "; ".join(notes),
    }


# ---------------------------------------------------------------- mistakes


def _find_mistakes(
    one: OwnGame, player: Player, turns: AbstractContextManager[Any], totals: Totals
) -> list[Row]:
    """Return the player's mistakes in a game, and count the moves by clock."""
    nodes: list[chess.pgn.GameNode] = [one.game, *one.game.mainline()]
    boards = [one.game.board()]
    for move in one.game.mainline_moves():
        # the network reads eight moves; repetitions need those since the last pawn move or capture
        boards.append(boards[-1].copy(stack=max(8, boards[-1].halfmove_clock)))
        boards[-1].push(move)
    has_evals = scores.has_scores(one.game)
    if has_evals:
        white = [scores.score_in_game(node) for node in nodes]
    else:
        white = _score_boards(boards, player, turns)
    for ply, board in enumerate(boards):
        final = scores.final_score(board)
        white[ply] = white[ply] if final is None else final
    short = _short_of_time(one, nodes)
    totals.moves.update(short.values())
    sign = 1 if one.color else -1
    margin = scores.BLUNDER if has_evals else SUSPICION
    suspects = [
        ply
        for ply, board in enumerate(boards[:-1])
        if board.turn == one.color
        and (scores.clip_score(white[ply]) - scores.clip_score(white[ply + 1])) * sign > margin
    ]
    found = []
    for first in range(0, len(suspects), BATCH // 8):
        part = suspects[first : first + BATCH // 8]
        with turns:
            plays = _search([boards[ply + step] for ply in part for step in (0, 1)], player)
        for ply, before, after in zip(part, plays[::2], plays[1::2], strict=True):
            own = white[ply : ply + 2]
            if before is not None and not has_evals:
                own = [score_for_white(boards[ply], before), white[ply + 1]]
                if after is not None:
                    own[1] = score_for_white(boards[ply + 1], after)
            if before is not None and (
                row := _describe_mistake(one, boards[ply + 1], own, before, after)
            ):
                found.append(row | {"short": short.get(ply)})
    return found


def _score_boards(
    boards: Sequence[chess.Board], player: Player, turns: AbstractContextManager[Any]
) -> list[float]:
    """Return White's expected scores by the network alone."""
    white: list[float] = []
    for first in range(0, len(boards), BATCH):
        part = boards[first : first + BATCH]
        with turns:
            own = player.expected_scores(part).tolist()
        white += [one if board.turn else 1 - one for one, board in zip(own, part, strict=True)]
    return white


def _search(boards: Sequence[chess.Board], player: Player) -> list[Play | None]:
    """Search positions together; None for those without a legal move."""
    open_boards = [board for board in boards if any(board.legal_moves)]
    plays = iter(player.analyse_all(open_boards, SIMULATIONS))
    return [next(plays) if any(board.legal_moves) else None for board in boards]


def score_for_white(board: chess.Board, play: Play) -> float:
    """Return White's expected score of a searched position."""
    own = scores.score_of_play(play)
    final = scores.final_score(board)
    return final if final is not None else own if board.turn else 1 - own


def _describe_mistake(
    one: OwnGame, after: chess.Board, white: Sequence[float], before: Play, answer: Play | None
) -> Row | None:
    """Return the row of a move, or None if it is no mistake; `after` has the move on its stack."""
    board, move, best = after.copy(stack=1), after.peek(), before.moves[0]
    board.pop()
    sign = 1 if one.color else -1
    loss = (scores.clip_score(white[0]) - scores.clip_score(white[1])) * sign
    if best.move == move or loss <= scores.BLUNDER:
        return None
    own = [score if one.color else 1 - score for score in white]
    name = number_moves([move], board)[0]
    return {
        "game": one.index,
        "ply": after.ply() - one.game.board().ply(),
        "kind": _find_kind(board, move, own, before, answer),
        "phase": _find_phase(board),
        "loss": loss,
        "uci": move.uci(),
        "best_uci": best.move.uci(),
        "text": f"{name} lost {loss:.2f}; {board.san(best.move)} was better",
    }


def _find_kind(
    board: chess.Board,
    move: chess.Move,
    own: Sequence[float],
    before: Play,
    answer: Play | None,
) -> str:
    """Return the first of KINDS that fits; `own` are the player's scores before and after."""
    if before.moves[0].mate > 0 and own[1] < WON:
        return "missed a mate"
    if answer is not None and answer.moves[0].mate > 0:
        return "allowed a mate"
    features = legal_move_features(planes_of([board]))
    labels = (features["moves"] % LABELS).tolist()
    rows_MF = features["move_features"].astype(int)
    played_F, best_F = (
        rows_MF[labels.index(label_of(one, board.turn))] for one in (move, before.move)
    )
    if max(played_F[RISKS], played_F[LEAVES]) - played_F[TAKES] >= PIECE:
        return "left a piece hanging"
    if best_F[TAKES] - best_F[RISKS] >= PIECE > played_F[TAKES] - played_F[RISKS]:
        return "missed a capture"
    return "let a win slip" if own[0] >= WON > own[1] else "other"


def _find_phase(board: chess.Board) -> str:
    pieces = board.occupied & ~board.pawns & ~board.kings
    if pieces.bit_count() <= ENDGAME_PIECES:
        return "endgame"
    return "opening" if board.ply() < OPENING_PLIES else "middlegame"


def _short_of_time(one: OwnGame, nodes: Sequence[chess.pgn.GameNode]) -> dict[int, bool]:
    """Return, by half-move of the player, whether a tenth of the starting time was left."""
    clocks: dict[int, float] = {}
    for ply, node in enumerate(nodes):
        with suppress(ValueError):
            if (left := node.clock()) is not None:
                clocks[ply] = left
    start = one.tag("TimeControl").partition("+")[0]
    initial = float(start) if start.isdecimal() else max(clocks.values(), default=0)
    plies = [ply for ply in range(2, len(nodes)) if nodes[ply].turn() != one.color]
    # the move from position ply - 1 to ply; the player's clock was last written at ply - 2
    known = [ply for ply in plies if ply - 2 in clocks and ply > 2]
    return {ply - 1: clocks[ply - 2] < SHORT_OF_TIME * initial for ply in known}


# ---------------------------------------------------------------- summary


def summarize(totals: Totals) -> Row:
    """Return the commonest mistakes, the openings and the time trouble."""
    return {
        "mistakes": _group_mistakes(totals),
        "openings": list(_group_openings(totals.games))[:MAX_OPENINGS],
        "time": _describe_time(totals),
    }


def _group_mistakes(totals: Totals) -> list[Row]:
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in totals.mistakes:
        groups[row["kind"], row["phase"]].append(row)
    ranked = sorted(groups.items(), key=lambda item: -len(item[1]))[:MAX_MISTAKES]
    return [
        {
            "kind": kind,
            "phase": phase,
            "count": len(rows),
            "games": len({row["game"] for row in rows}),
            "lost": sum(row["loss"] for row in rows) / len(rows),
            "examples": sorted(rows, key=lambda row: -row["loss"])[:MAX_EXAMPLES],
        }
        for (kind, phase), rows in ranked
    ]


def _group_openings(games: Sequence[OwnGame]) -> Iterator[Row]:
    """Yield openings with enough games, the largest difference from the expected points first."""
    groups: dict[tuple[str, str], list[OwnGame]] = defaultdict(list)
    for one in games:
        if one.score is not None and one.expected is not None:
            groups[one.opening, chess.COLOR_NAMES[one.color]].append(one)
    rows: list[Row] = []
    for (opening, side), played in groups.items():
        gains = np.array([(one.score or 0.0) - (one.expected or 0.0) for one in played])
        if len(gains) >= MIN_OPENING_GAMES:
            worst = [played[place] for place in np.argsort(gains, kind="stable")[:MAX_EXAMPLES]]
            examples = [
                {"game": one.index, "ply": 16, "text": f"scored {one.score:g}"} for one in worst
            ]
            expected = sum(one.expected or 0.0 for one in played) / len(played)
            rows.append(
                {
                    "opening": opening,
                    "side": side,
                    "games": len(played),
                    "score": expected + float(gains.mean()),
                    "expected": expected,
                    "difference": float(gains.mean()),
                    "error": float(1.96 * gains.std(ddof=1) / math.sqrt(len(gains))),
                    "examples": examples,
                }
            )
    yield from sorted(rows, key=lambda row: -abs(row["difference"]) * row["games"])


def _describe_time(totals: Totals) -> Row | None:
    """Return how often the player errs with little time left; None without clocks."""
    if not totals.moves:
        return None
    rows = []
    for short in (True, False):
        errors = [row for row in totals.mistakes if row["short"] is short]
        moves = totals.moves[short]
        rows.append({"moves": moves, "mistakes": len(errors), "share": len(errors) / max(moves, 1)})
    lost = [
        one
        for one in totals.games
        if one.score == 0 and "time" in one.tag("Termination").casefold()
    ]
    hurried = [row for row in totals.mistakes if row["short"]]
    return {
        "short": rows[0],
        "other": rows[1],
        "lost_on_time": len(lost),
        "games": len(totals.games),
        "examples": sorted(hurried, key=lambda row: -row["loss"])[:MAX_EXAMPLES],
    }


def render(header: Row, summary: Row) -> str:
    """Return a review of many games as text."""
    games = {index: game["title"] for index, game in enumerate(header["games"])}

    def example(rows: Sequence[Row]) -> str:
        return f"{games[rows[0]['game']]}: {rows[0]['text']}" if rows else ""

    mistakes = [
        [one["kind"], one["phase"], str(one["count"]), str(one["games"]), example(one["examples"])]
        for one in summary["mistakes"]
    ]
    openings = [
        [
            *(one["opening"], one["side"], str(one["games"]), f"{one['score']:.2f}"),
            *(f"{one['expected']:.2f}", f"{one['difference']:+.2f} (+-{one['error']:.2f})"),
        ]
        for one in summary["openings"]
    ]
    heads = ["mistake", "phase", "count", "games", "example"]
    parts = [f"{header['player']}: {header['notes']}".rstrip(": "), aligned(heads, mistakes)]
    heads = ["opening", "side", "games", "score", "expected", "difference (95 %)"]
    parts += [aligned(heads, openings)] if openings else []
    if clock := summary["time"]:
        rates = [f"{clock[key]['share']:.1%} of {clock[key]['moves']:,}" for key in TIMES]
        parts.append(f"mistakes short of time: {rates[0]} moves; otherwise: {rates[1]}")
        parts.append(f"lost on time: {clock['lost_on_time']} of {clock['games']} games")
    definitions = [f"{kind}: {text}" for kind, text in KINDS.items()]
    return "\n\n".join([*parts, "\n".join([*definitions, header["about"]])])
