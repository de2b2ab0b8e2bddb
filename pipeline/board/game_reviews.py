"""Review many games of one player: mistakes by kind and phase, openings, and time trouble.

Each game is reviewed by itself, so processes can share the work without changing the result.
mistakes.py reviews a game; this module reads the games and summarizes their reviews.
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
from pipeline.board.game import (
    GameError,
    PlayerGame,
    check_game,
    name_game,
    read_next,
    read_player_game,
)
from pipeline.board.lichess import MAX_GAMES
from pipeline.board.mistakes import DEFINITIONS, KINDS, GameReview, Row, review_game
from pipeline.evaluation.figures import NORMAL_95
from pipeline.executors.local import Failure, LocalEngine
from pipeline.storage.tables import align_columns

MIN_PARALLEL_GAMES = 16
"""Minimum number of games for which starting processes saves time."""
MAX_READ_GAMES = 2 * MAX_GAMES
"""Maximum number of games to read while collecting MAX_GAMES that can be reviewed."""
SUMMARY_GAMES = 10
"""Number of games after which the summary so far is sent."""
MIN_OPENING_GAMES = 5
"""Minimum number of games for which an opening is listed."""
MAX_OPENINGS, MAX_MISTAKES, MAX_EXAMPLES = 12, 10, 5
"""Maximum number of openings and of kinds of mistakes listed, and of examples for each."""
EXAMPLE_PLY = 16
"""Half-moves after which the example of an opening is shown."""
Reviews = Sequence[tuple[PlayerGame, GameReview]]


class GamesRequest(BaseModel):
    """Request to review all games of one player."""

    model_config = ConfigDict(extra="forbid")

    pgn: str
    name: Annotated[str, Field(max_length=100)] = ""
    """The player, as in the tags; "" for the most frequent one."""
    network: str = ""


def review_games(
    request: GamesRequest, checkpoint: Path, *, stop: Stop = never
) -> Generator[Row, None, None]:
    """Yield the header, then after each game the number done, and after some the summary so far.

    Raises GameError if there is no game of the player, and UserError if a review fails.
    """
    games, notes = _read_games(request.pgn)
    name = request.name or _find_most_frequent_player(games)
    own_games = [
        read_player_game(index, game, side == "White")
        for index, game in enumerate(games)
        for side in ("White", "Black")
        if game.headers.get(side, "").casefold() == name.casefold()
    ]
    if not own_games:
        raise GameError(f"{name!r} played none of these {len(games)} games: check the name")
    yield {"header": _make_header(name, games, own_games, notes)}
    engine = LocalEngine(count_cores() if len(own_games) >= MIN_PARALLEL_GAMES else 1)
    reviewed: dict[int, GameReview] = {}
    with closing(engine.map(partial(review_game, checkpoint), own_games, stop)) as results:
        for number, status, value in results:
            if status != "ok":
                raise _make_error(value)
            reviewed[number] = value
            step: Row = {"done": len(reviewed), "of": len(own_games)}
            if len(reviewed) % SUMMARY_GAMES == 0 or len(reviewed) == len(own_games):
                # sorted, because the processes finish games in any order
                done = [(own_games[at], reviewed[at]) for at in sorted(reviewed)]
                step["summary"] = summarize(done)
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


def _find_most_frequent_player(games: Sequence[chess.pgn.Game]) -> str:
    names = Counter(game.headers.get(side, "?") for game in games for side in ("White", "Black"))
    names.pop("?", None)
    if not names:
        raise GameError("the games do not name their players: add the tags White and Black")
    return names.most_common(1)[0][0]


def _make_header(
    name: str,
    games: Sequence[chess.pgn.Game],
    own_games: Sequence[PlayerGame],
    notes: Sequence[str],
) -> Row:
    others = len(games) - len({game.index for game in own_games})
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
        "about": DEFINITIONS,
        "kinds": {kind: definition for kind, (definition, _) in KINDS.items()},
        "notes": "; ".join([*notes, *left_out]),
    }


# ---------------------------------------------------------------- summary


def summarize(reviews: Reviews) -> Row:
    """Return the commonest mistakes, the openings and the time trouble."""
    mistakes = [row for _, reviewed in reviews for row in reviewed.mistakes]
    openings = _group_openings([game for game, _ in reviews])
    return {
        "mistakes": _group_mistakes(mistakes),
        "openings": openings[:MAX_OPENINGS],
        "about_openings": _describe_chance(openings),
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


def _group_openings(games: Sequence[PlayerGame]) -> list[Row]:
    """Return the openings with enough games, those that chance explains least first.

    `error` is half the 95 % interval of the mean score of a player who scores as the ratings
    predict. Draws would narrow the interval, but are ignored.
    """
    groups: dict[tuple[str, str], list[tuple[PlayerGame, float, float]]] = defaultdict(list)
    for game in games:
        if (score := game.score) is not None and (expected := game.expected) is not None:
            groups[game.opening, chess.COLOR_NAMES[game.color]].append((game, score, expected))
    rows: list[Row] = []
    for (opening, side), played in groups.items():
        if len(played) < MIN_OPENING_GAMES:
            continue
        scores, expected_scores = (np.array(one) for one in list(zip(*played, strict=True))[1:])
        gains = scores - expected_scores
        variance = (expected_scores * (1 - expected_scores)).sum()
        difference, error = gains.mean(), NORMAL_95 * math.sqrt(variance) / len(gains)
        worst = [played[index] for index in np.argsort(gains, kind="stable")[:MAX_EXAMPLES]]
        rows.append(
            {
                "opening": opening,
                "side": side,
                "games": len(played),
                "score": float(scores.mean()),
                "expected": float(expected_scores.mean()),
                "difference": float(difference),
                "error": float(error),
                "within_chance": bool(abs(difference) <= error),
                "examples": [
                    {"game": game.index, "ply": EXAMPLE_PLY, "text": f"scored {score:g}"}
                    for game, score, _ in worst
                ],
            }
        )
    return sorted(rows, key=lambda row: -abs(row["difference"]) / row["error"])


def _describe_chance(openings: Sequence[Row]) -> str:
    """Say how many openings differ from the prediction by more than chance."""
    if not openings:
        return f"No opening has {MIN_OPENING_GAMES} games with a result and both ratings yet."
    differing = sum(not row["within_chance"] for row in openings)
    return (
        f"{differing or 'None'} of {len(openings)} openings with at least {MIN_OPENING_GAMES} games"
        " scored above or below what the ratings predict by more than chance."
        " By luck alone, 1 in 20 would."
    )


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


def format_review(header: Row, summary: Row) -> str:
    """Return a review of many games as text."""

    def name_example(rows: Sequence[Row]) -> str:
        return f"{header['games'][rows[0]['game']]['title']}: {rows[0]['text']}" if rows else ""

    mistakes = [
        [
            *(row["kind"], row["phase"], str(row["count"]), str(row["games"])),
            name_example(row["examples"]),
        ]
        for row in summary["mistakes"]
    ]
    openings = [
        [
            *(row["opening"], row["side"], str(row["games"]), f"{row['score']:.2f}"),
            *(f"{row['expected']:.2f}", f"{row['difference']:+.2f} (+-{row['error']:.2f})"),
            "within chance" if row["within_chance"] else "",
        ]
        for row in summary["openings"]
    ]
    heads = ["mistake", "phase", "count", "games", "example"]
    parts = [f"{header['player']}: {header['notes']}".rstrip(": "), align_columns(heads, mistakes)]
    heads = ["opening", "side", "games", "score", "expected", "difference (95 %)", ""]
    parts += [align_columns(heads, openings)] if openings else []
    parts.append(summary["about_openings"])
    if clock := summary["time"]:
        rates = [
            f"{clock[key]['share']:.1%} of {clock[key]['moves']:,}" for key in ("short", "other")
        ]
        parts.append(f"mistakes short of time: {rates[0]} moves; otherwise: {rates[1]}")
        parts.append(f"lost on time: {clock['lost_on_time']} of {clock['games']} games")
    definitions = [f"{kind}: {text}" for kind, text in header["kinds"].items()]
    return "\n\n".join([*parts, "\n".join([*definitions, header["about"]])])
