"""A match with its files: played, continued after a kill, summed up.

A match that was killed and continued ends with the same games, unless time or an external engine decides moves: a game
depends on its number only, and a test that ends early counts no pair after the one that decided.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.evaluation.handwritten import evaluate
from engine.match.arena import decided, play
from engine.match.config import MatchError
from engine.match.game import GameRecord
from engine.match.openings import Opening, chosen, generate, read_book
from engine.match.players import Player
from engine.match.sprt import estimate, llr, pair_counts, verdict
from engine.progress import Progress, Stop, Tick, never, silent
from pipeline.dataset.files.shards import publish_json
from pipeline.dumps.reader import open_text
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.files import SUMMARY, Journal, claim, read_games, require_free, write_all
from pipeline.matches.players import player_of
from pipeline.storage.stores import alone


class MatchBusyError(MatchError):
    """Another process plays in the directory."""


def arena(
    a: SideConfig,
    b: SideConfig,
    config: ArenaConfig,
    out: Path,
    *,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Play A against B into `out` and return the summary; games that are there already are not played again.

    Raises PlayerError, BookError, MatchFilesError for a directory of another match, and MatchBusyError while another
    process plays there. In the summary of a match that was stopped, `finished` is False.
    """
    (first, one), (second, two) = player_of(a, config.seed), player_of(b, config.seed + 1)
    openings = _openings(config)
    require_free(out)
    busy = MatchBusyError(f"another match is being played in {out}: wait for it, or choose a new directory")
    with alone(out, busy):
        claim(out, {"a": one, "b": two, **_rules(config)})
        games = read_games(out)
        if games and max(games) >= config.games:
            raise MatchError(f"{out} holds game number {max(games) + 1} already: ask for as many games or more")
        match = _Match((first, second), config, out, games, progress)
        return match.play(openings, stop)


def _openings(config: ArenaConfig) -> list[Opening]:
    """Return the opening of every pair."""
    pairs = config.games // 2
    if config.book is None:
        return generate(pairs, evaluate, seed=config.seed, plies=config.plies)
    book = read_book(config.book, plies=config.plies, open_text=open_text)
    return chosen(book, pairs, seed=config.seed, repeat=config.repeat)


def _rules(config: ArenaConfig) -> dict[str, Any]:
    """Return what identifies a match beside its players."""
    book = None if config.book is None else hashlib.sha256(config.book.read_bytes()).hexdigest()
    played = {name: getattr(config.match, name) for name in ("margin", "patience")}
    test = asdict(config.sprt) if config.early else None
    openings = {"book": book, "plies": config.plies, "seed": config.seed, "repeat": config.repeat}
    return {"openings": openings, "rules": asdict(config.match.rules), **played, "ends_by": test}


class _Match:
    """A match in its directory: the players, the configuration and the games so far."""

    def __init__(
        self,
        players: tuple[Player, Player],
        config: ArenaConfig,
        out: Path,
        games: dict[int, GameRecord],
        progress: Progress,
    ) -> None:
        self.players, self.config, self.out, self.games, self.progress = players, config, out, games, progress
        self.begun = time.perf_counter()
        self.before = len(games)

    def play(self, openings: Sequence[Opening], stop: Stop) -> dict[str, Any]:
        """Play the missing games, write the files and return the summary."""
        pairs = self._decided()
        if pairs is None and len(self.games) < self.config.games:
            (self.out / SUMMARY).unlink(missing_ok=True)  # the games to come will change it
            with closing(Journal(self.out, self.games)) as journal:

                def report(record: GameRecord) -> None:
                    nonlocal pairs
                    journal.add(record)
                    self.games[record.game] = record
                    pairs = self._decided()
                    self._tick()

                done = list(self.games)
                play(
                    self.players,
                    openings,
                    self.config.match,
                    done=done,
                    report=report,
                    stop=lambda: pairs is not None or stop(),
                )
        end = self.config.games if pairs is None else 2 * pairs
        counted = [self.games[number] for number in sorted(self.games) if number < end]
        finished = pairs is not None or len(counted) == self.config.games
        if finished:
            clocks = {player.limit.clock or "-" for player in self.players}
            write_all(self.out, counted, self._names(), clocks.pop() if len(clocks) == 1 else "?")
        summary = self._summary(counted, finished)
        publish_json(self.out, SUMMARY, summary)
        return summary

    def _decided(self) -> int | None:
        """Return how many pairs decided the test; None while it is undecided or does not end the match."""
        if not self.config.early:
            return None
        points = [self.games[number].points if number in self.games else None for number in range(self.config.games)]
        return decided(points, self.config.sprt)

    def _tick(self) -> None:
        points = [game.points for game in self.games.values()]
        rate = (len(points) - self.before) / max(1e-9, time.perf_counter() - self.begun)
        self.progress(
            Tick(len(points), self.config.games, "games", {"score": sum(points) / len(points), "games/s": rate})
        )

    def _names(self) -> tuple[str, str]:
        first, second = (player.name for player in self.players)
        return (first, second) if first != second else (f"{first} (A)", f"{second} (B)")

    def _summary(self, games: list[GameRecord], finished: bool) -> dict[str, Any]:
        """Return the summary; statistics are of whole pairs."""
        by_number = {game.game: game.points for game in games}
        paired = [number for number in sorted(by_number) if number ^ 1 in by_number]
        counts = pair_counts([by_number[number] for number in paired])
        points = Counter(game.points for game in games)
        found, test, names = estimate(counts), self.config.sprt, self._names()
        ratio = llr(counts, test)
        late = [game.late for game in games if game.late is not None]
        summary: dict[str, Any] = {
            "a": names[0],
            "b": names[1],
            "games": len(games),
            "wins": points[1.0],
            "draws": points[0.5],
            "losses": points[0.0],
            "pairs": list(counts),
            "score": round(found.score, 6),
            "elo": round(found.elo, 2),
            "elo_low": round(found.elo_low, 2),
            "elo_high": round(found.elo_high, 2),
            "nelo": None if found.nelo is None else round(found.nelo, 2),
            "los": round(found.los, 6),
            "sprt": {
                "verdict": verdict(ratio, test),
                "llr": round(ratio, 4),
                "lower": round(test.lower, 4),
                "upper": round(test.upper, 4),
                **asdict(test),
            },
            "endings": dict(sorted(Counter(game.ending for game in games).items())),
            "forfeits": {
                side: dict(sorted(Counter(game.ending for game in games if game.forfeit == side).items()))
                for side in ("a", "b")
            },
            "latest_ms": {side: round(1000 * max(row[at] for row in late), 1) for at, side in enumerate("ab")}
            if late
            else None,
            "plies": sum(len(game.book) + len(game.moves) for game in games),
            "finished": finished,
        }
        return summary | {"text": text_of(summary)}


def text_of(summary: dict[str, Any]) -> str:
    """Return a summary as text."""
    test = summary["sprt"]
    lines = [
        f"{summary['a']} - {summary['b']}: +{summary['wins']} ={summary['draws']} -{summary['losses']}"
        f" of {summary['games']} games, score {summary['score']:.3f}",
        f"Elo {summary['elo']:+.1f} [{summary['elo_low']:+.1f}, {summary['elo_high']:+.1f}] (95 %),"
        f" LOS {100 * summary['los']:.1f} %, pairs LL LD DD+WL WD WW: {' '.join(map(str, summary['pairs']))}",
        f"SPRT [{test['elo0']:g}, {test['elo1']:g}] {test['model']}: {test['verdict']},"
        f" LLR {test['llr']:.2f} ({test['lower']:.2f}, {test['upper']:.2f})",
        "endings: " + ", ".join(f"{count} {name}" for name, count in summary["endings"].items()),
    ]
    for side, faults in summary["forfeits"].items():
        if faults:
            told = ", ".join(f"{count} {name}" for name, count in faults.items())
            lines.append(f"forfeits of {summary[side]}: {told}")
    if summary["latest_ms"] is not None:
        lines += [] if any(summary["forfeits"].values()) else ["forfeits: none"]
        lines.append(f"latest move: A {summary['latest_ms']['a']} ms, B {summary['latest_ms']['b']} ms behind its time")
    return "\n".join(lines)
