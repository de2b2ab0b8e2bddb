"""Review many games of one player: mistakes by kind and phase, openings, and time trouble.

Games are reviewed independently, in one process per core, so the number of processes does not
change the result. mistakes.py reviews a game; this module reads the games and counts.
"""

import io
import math
from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated

import chess
import chess.pgn
import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from engine.cores import count_cores
from engine.errors import UserError
from engine.progress import Stop, never
from pipeline.board.game import GameError, check_game, read_next
from pipeline.board.lichess import MAX_GAMES
from pipeline.board.mistakes import (
    DEFINITIONS,
    KINDS,
    GameReview,
    OwnGame,
    Row,
    read_own_game,
    review_game,
)
from pipeline.board.review import name_game
from pipeline.evaluation.figures import NORMAL_95
from pipeline.executors.local import Failure, LocalEngine
from pipeline.storage.tables import align_columns

MIN_PARALLEL_GAMES = 16
"""Minimum number of games for which starting processes saves time."""
MAX_READ_GAMES = 2 * MAX_GAMES
"""Maximum number of games to read while collecting MAX_GAMES that can be reviewed."""
MIN_OPENING_GAMES, MAX_OPENINGS, MAX_MISTAKES, MAX_EXAMPLES = 5, 12, 10, 5
Reviews = Sequence[tuple[OwnGame, GameReview]]


class GamesRequest(BaseModel):
    """Games of a player to review."""

    model_config = ConfigDict(extra="forbid")

    pgn: str
    name: Annotated[str, Field(max_length=100)] = ""
    """The player, as in the tags; "" for the most frequent one."""
    network: str = ""


def review_games(
    request: GamesRequest, checkpoint: Path, *, workers: int = 0, stop: Stop = never
) -> Generator[Row, None, None]:
    """Yield the header, then after each game the number done, and sometimes the summary so far.

    `workers` is the number of processes, 0 for one per core. Raises GameError if no game can be
    read, and the errors of opening a checkpoint.
    """
    games, notes = _read_games(request.pgn)
    name = request.name or _most_frequent(games)
    own = [
        read_own_game(index, game, side == "White")
        for index, game in enumerate(games)
        for side in ("White", "Black")
        if game.headers.get(side, "").casefold() == name.casefold()
    ]
    if not own:
        raise GameError(f"{name!r} played none of these {len(games)} games: check the name")
    yield {"header": _make_header(name, games, own, notes)}
    engine = LocalEngine((workers or count_cores()) if len(own) >= MIN_PARALLEL_GAMES else 1)
    reviewed: dict[int, GameReview] = {}
    with closing(engine.map(partial(review_game, checkpoint), own, stop)) as results:
        for number, status, value in results:
            if status != "ok":
                raise _make_error(value)
            reviewed[number] = value
            step: Row = {"done": len(reviewed), "of": len(own)}
            if len(reviewed) % 10 == 0 or len(reviewed) == len(own):
                # games end in any order
                step["summary"] = summarize([(own[at], reviewed[at]) for at in sorted(reviewed)])
            yield step


def _make_error(value: Failure | None) -> Exception:
    """Return the error that ends the review when a game could not be reviewed."""
    if value is None:
        return UserError("a process was killed three times (out of memory?): try fewer games")
    if value.is_user_error or value.is_system_error:
        return UserError(value.message)
    return RuntimeError(f"a process failed: {value.message}\n{value.traceback}")


def _read_games(text: str) -> tuple[list[chess.pgn.Game], list[str]]:
    """Return the games that can be reviewed, and notes on the others."""
    stream = io.StringIO(text.lstrip("\ufeff \n\r\t"))
    games: list[chess.pgn.Game] = []
    skipped = Counter[str]()
    for _ in range(MAX_READ_GAMES):
        if len(games) == MAX_GAMES or (game := read_next(stream)) is None:
            break
        try:
            games.append(check_game(game))
        except GameError as error:
            skipped[str(error).partition(":")[0]] += 1
    if not games:
        raise GameError("this text contains no game of standard chess: paste games in PGN")
    notes = [f"{reason} ({count})" for reason, count in skipped.items()]
    if read_next(stream) is not None:
        notes.append(f"only the first {len(games)} games are reviewed")
    return games, notes


def _most_frequent(games: Sequence[chess.pgn.Game]) -> str:
    names = Counter(game.headers.get(side, "?") for game in games for side in ("White", "Black"))
    names.pop("?", None)
    if not names:
        raise GameError("the games do not name their players: add the tags White and Black")
    return names.most_common(1)[0][0]


def _make_header(
    name: str, games: Sequence[chess.pgn.Game], own: Sequence[OwnGame], notes: Sequence[str]
) -> Row:
    others = len(games) - len({game.index for game in own})
    left_out = [f"{others} games of other players are left out"] if others else []
    return {
        "player": name[:100],
        "games": [
            {
                "title": name_game(game.headers),
                "start": game.board().fen(),
                "moves": [move.uci() for move in game.mainline_moves()],
                "tags": {key: value[:80] for key, value in game.headers.items()},
            }
            for game in games
        ],
        "about": f"{DEFINITIONS} Openings are compared with the score that both ratings predict.",
        "kinds": KINDS,
        "notes": "; ".join([*notes, *left_out]),
    }


# ---------------------------------------------------------------- summary


def summarize(reviews: Reviews) -> Row:
    """Return the commonest mistakes, the openings and the time trouble."""
    mistakes = [row for _, reviewed in reviews for row in reviewed.mistakes]
    return {
        "mistakes": _group_mistakes(mistakes),
        "openings": _group_openings([game for game, _ in reviews]),
        "time": _describe_time(reviews, mistakes),
    }


def _group_mistakes(mistakes: Sequence[Row]) -> list[Row]:
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in mistakes:
        groups[row["kind"], row["phase"]].append(row)
    ranked = sorted(groups.items(), key=lambda item: -len(item[1]))[:MAX_MISTAKES]
    return [
        {
            "kind": kind,
            "phase": phase,
            "count": len(rows),
            "games": len({row["game"] for row in rows}),
            "lost": sum(row["loss"] for row in rows) / len(rows),
            "examples": _pick_worst(rows),
        }
        for (kind, phase), rows in ranked
    ]


def _pick_worst(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: -row["loss"])[:MAX_EXAMPLES]


def _group_openings(games: Sequence[OwnGame]) -> list[Row]:
    """Return openings with enough games, the largest difference from the expected points first."""
    groups: dict[tuple[str, str], list[tuple[OwnGame, float, float]]] = defaultdict(list)
    for game in games:
        if (score := game.score) is not None and (expected := game.expected) is not None:
            groups[game.opening, chess.COLOR_NAMES[game.color]].append((game, score, expected))
    rows: list[Row] = []
    for (opening, side), played in groups.items():
        if len(played) < MIN_OPENING_GAMES:
            continue
        scores, expected_scores = (np.array(one) for one in list(zip(*played, strict=True))[1:])
        gains = scores - expected_scores
        worst = [played[place] for place in np.argsort(gains, kind="stable")[:MAX_EXAMPLES]]
        rows.append(
            {
                "opening": opening,
                "side": side,
                "games": len(played),
                "score": float(scores.mean()),
                "expected": float(expected_scores.mean()),
                "difference": float(gains.mean()),
                "error": float(NORMAL_95 * gains.std(ddof=1) / math.sqrt(len(gains))),
                "examples": [
                    {"game": game.index, "ply": 16, "text": f"scored {score:g}"}
                    for game, score, _ in worst
                ],
            }
        )
    return sorted(rows, key=lambda row: -abs(row["difference"]) * row["games"])[:MAX_OPENINGS]


def _describe_time(reviews: Reviews, mistakes: Sequence[Row]) -> Row | None:
    """Return how often the player errs with little time left; None without clocks."""
    total = sum((reviewed.moves for _, reviewed in reviews), Counter[bool]())
    if not total:
        return None
    found: Row = {}
    for name, short in (("short", True), ("other", False)):
        count, moves = sum(row["short"] is short for row in mistakes), total[short]
        found[name] = {"moves": moves, "mistakes": count, "share": count / max(moves, 1)}
    lost = [
        game
        for game, _ in reviews
        if game.score == 0 and "time" in game.tag("Termination").casefold()
    ]
    hurried = _pick_worst([row for row in mistakes if row["short"]])
    return found | {"lost_on_time": len(lost), "games": len(reviews), "examples": hurried}


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
    parts = [f"{header['player']}: {header['notes']}".rstrip(": "), align_columns(heads, mistakes)]
    heads = ["opening", "side", "games", "score", "expected", "difference (95 %)"]
    parts += [align_columns(heads, openings)] if openings else []
    if clock := summary["time"]:
        rates = [
            f"{clock[key]['share']:.1%} of {clock[key]['moves']:,}" for key in ("short", "other")
        ]
        parts.append(f"mistakes short of time: {rates[0]} moves; otherwise: {rates[1]}")
        parts.append(f"lost on time: {clock['lost_on_time']} of {clock['games']} games")
    definitions = [f"{kind}: {text}" for kind, text in KINDS.items()]
    return "\n\n".join([*parts, "\n".join([*definitions, header["about"]])])
