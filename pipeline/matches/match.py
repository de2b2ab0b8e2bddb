"""A match with its files: play it, resume it, sum it up.

A match that was killed and resumed ends with the same games, unless time or an external engine
decides moves: a game depends on its number only, and a match that the sequential test ends counts
no pair after the one that decided.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import Any

from engine.evaluation.handwritten import evaluate
from engine.match.arena import pairs_to_decision, play
from engine.match.config import MatchError
from engine.match.game import GameRecord
from engine.match.openings import Opening, choose, generate, read_book
from engine.match.players import Contestant
from engine.match.sprt import Estimate, SprtConfig, estimate, llr, pair_counts, verdict
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.files.shards import publish_json
from pipeline.dumps.source import open_text
from pipeline.errors import Stopped
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.files import (
    FORMAT_VERSION,
    SUMMARY,
    Journal,
    MatchFilesError,
    read_games,
    write_all,
)
from pipeline.matches.players import player_of
from pipeline.storage.job_folder import MATCH, JobFolder

ELO = ("elo", "elo_low", "elo_high")
"""A match's Elo difference and the ends of its 95 % interval, in its summary."""


def play_match(
    a: SideConfig,
    b: SideConfig,
    config: ArenaConfig,
    out: Path,
    *,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Play the missing games of A against B in `out`; return and write the summary.

    Raises PlayerError, BookError, MatchFilesError for a directory of another match, MatchError
    while another process plays there, and Stopped once the files of a stopped match are written.
    """
    (first, one), (second, two) = player_of(a, config.seed), player_of(b, config.seed + 1)
    openings = _openings(config)
    folder = JobFolder(out, MATCH, MatchFilesError, MatchError)
    with folder.held():
        identity = {"format_version": FORMAT_VERSION, "a": one, "b": two, **_conditions(config)}
        folder.claim(identity)
        games = read_games(out)
        if max(games, default=-1) >= config.games:
            raise MatchError(
                f"{out} holds game number {max(games) + 1} already: ask for as many games or more"
            )
        if _decided(games, config) is None and len(games) < config.games:
            _play_missing((first, second), openings, config, out, games, progress, stop)
        pairs = _decided(games, config)
        end = config.games if pairs is None else 2 * pairs
        counted = [games[number] for number in sorted(games) if number < end]
        same = first.name == second.name
        names = (f"{first.name} (A)", f"{second.name} (B)") if same else (first.name, second.name)
        finished = pairs is not None or len(counted) == config.games
        if finished:
            clocks = {player.limit.clock or "-" for player in (first, second)}
            write_all(out, counted, names, clocks.pop() if len(clocks) == 1 else "?")
        summary = {
            **summarize(counted, names, config.sprt),
            "finished": finished,
            "ended_by_test": pairs is not None,
        }
        summary["text"] = text_of(summary)
        publish_json(out, SUMMARY, summary)
    if not finished:
        raise Stopped(f"stopped after {len(counted)} games; run the same command to continue")
    return summary


def _openings(config: ArenaConfig) -> list[Opening]:
    """Return the opening of every pair."""
    pairs = config.games // 2
    if config.book is None:
        return generate(pairs, evaluate, seed=config.seed, plies=config.plies)
    return choose(
        read_book(config.book, plies=config.plies, open_text=open_text), pairs, seed=config.seed
    )


def _conditions(config: ArenaConfig) -> dict[str, Any]:
    """Return what identifies a match beside its players."""
    book = None if config.book is None else hashlib.sha256(config.book.read_bytes()).hexdigest()
    openings = {"book": book, "plies": config.plies, "seed": config.seed}
    return {
        "openings": openings,
        "margin": config.margin,
        "ends_by": asdict(config.sprt) if config.early else None,
    }


def _decided(games: dict[int, GameRecord], config: ArenaConfig) -> int | None:
    """Return how many pairs decided the test, None while it is undecided or not in use."""
    if not config.early:
        return None
    points = [games[number].points if number in games else None for number in range(config.games)]
    return pairs_to_decision(points, config.sprt)


def _play_missing(
    players: tuple[Contestant, Contestant],
    openings: Sequence[Opening],
    config: ArenaConfig,
    out: Path,
    games: dict[int, GameRecord],
    progress: Progress,
    stop: Stop,
) -> None:
    """Play and journal games until all are done, the test has decided, or `stop`."""
    (out / SUMMARY).unlink(missing_ok=True)  # the games to come will change it
    before, begun, over = len(games), time.perf_counter(), Event()
    with closing(Journal(out, games)) as journal:

        def report(record: GameRecord) -> None:
            journal.add(record)
            games[record.game] = record
            if _decided(games, config) is not None:
                over.set()
            points = [game.points for game in games.values()]
            rate = (len(points) - before) / max(1e-9, time.perf_counter() - begun)
            values = {"score": sum(points) / len(points), "games/s": rate}
            progress(Tick(len(points), config.games, "games", values))

        play(
            players,
            openings,
            concurrency=config.concurrency,
            margin=config.margin,
            done=list(games),
            sequential=config.early,
            report=report,
            stop=lambda: over.is_set() or stop(),
        )


def summarize(
    games: Sequence[GameRecord], names: tuple[str, str], test: SprtConfig
) -> dict[str, Any]:
    """Return the summary of a match's games; statistics are of whole pairs."""
    by_number = {game.game: game.points for game in games}
    paired = [number for number in sorted(by_number) if number ^ 1 in by_number]
    counts = pair_counts([by_number[number] for number in paired])
    points, found, ratio = (
        Counter(game.points for game in games),
        estimate(counts),
        llr(counts, test),
    )
    return {
        "a": names[0],
        "b": names[1],
        "games": len(games),
        "wins": points[1.0],
        "draws": points[0.5],
        "losses": points[0.0],
        "pairs": list(counts),
        "score": round(found.score, 6),
        **_known_elo(found),
        "los": round(found.los, 6),
        "sprt": {
            "verdict": verdict(ratio, test),
            "llr": round(ratio, 4),
            "lower": round(test.lower, 4),
            "upper": round(test.upper, 4),
            **asdict(test),
        },
        "endings": _count_endings(games),
        "forfeits": {
            side: _count_endings(game for game in games if game.forfeit == side)
            for side in ("a", "b")
        },
    }


def _known_elo(found: Estimate) -> dict[str, float | None]:
    """Return Elo with its interval; a clean sweep has one bound only."""
    only = {0.0: "elo_high", 1.0: "elo_low"}.get(found.score)
    return {name: round(getattr(found, name), 2) if only in (None, name) else None for name in ELO}


def _count_endings(games: Iterable[GameRecord]) -> dict[str, int]:
    return dict(sorted(Counter(game.ending for game in games).items()))


def text_of(summary: dict[str, Any]) -> str:
    """Return a summary as text."""
    test = summary["sprt"]
    lines = [
        f"{summary['a']} - {summary['b']}: +{summary['wins']} ={summary['draws']} "
        f"-{summary['losses']}"
        f" of {summary['games']} games, score {summary['score']:.3f}",
        f"Elo {format_elo(summary)} (95 "
        f"%{', too far from 0: the test ended the match' if summary['ended_by_test'] else ''}),"
        f" LOS {100 * summary['los']:.1f} %, pairs LL LD DD+WL WD WW: "
        f"{' '.join(map(str, summary['pairs']))}",
        f"SPRT [{test['elo0']:g}, {test['elo1']:g}]: {test['verdict']},"
        f" LLR {test['llr']:.2f} ({test['lower']:.2f}, {test['upper']:.2f})",
        f"endings: {_list_counts(summary['endings'])}",
    ]
    forfeits = {summary[side]: counts for side, counts in summary["forfeits"].items() if counts}
    return "\n".join(
        lines + [f"forfeits of {name}: {_list_counts(counts)}" for name, counts in forfeits.items()]
    )


def format_elo(row: Mapping[str, Any], prefix: str = "") -> str:
    """Format Elo with its 95 % interval, a clean sweep's bound, or "" without a match."""
    elo, low, high = (row[prefix + name] for name in ELO)
    if elo is not None:
        return f"{elo:+.0f} [{low:+.0f}, {high:+.0f}]"
    return (
        f"above {low:+.0f}" if low is not None else f"below {high:+.0f}" if high is not None else ""
    )


def _list_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())
