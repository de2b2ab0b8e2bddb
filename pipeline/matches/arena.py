"""A match with its files: played, continued after a kill, summed up.

The games that stand in the end are the same whether or not the match was killed in between, when neither time nor anything
else outside decides moves: a game depends on its number only, and a test that ended early counts no pair behind its end.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
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
from engine.progress import Progress, Tick, silent
from pipeline.dataset.files.shards import publish_json
from pipeline.dumps.reader import open_text
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.files import SUMMARY, Journal, claim, forget, read_games, require_free, write_all
from pipeline.matches.players import player_of
from pipeline.storage.stores import alone


class MatchBusyError(MatchError):
    """Somebody plays in the directory."""


def arena(
    a: SideConfig,
    b: SideConfig,
    config: ArenaConfig,
    out: Path,
    *,
    progress: Progress = silent,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Play A against B into `out` and give the summary; games that are there already are not played again.

    Raises PlayerError, BookError, MatchFilesError for a directory of another match, MatchBusyError while another
    process plays there. A match that was stopped has `finished` False.
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
    """Give the opening of every pair."""
    pairs = config.games // 2
    if config.book is None:
        return generate(pairs, evaluate, seed=config.seed, plies=config.plies)
    book = read_book(config.book, plies=config.plies, open_text=open_text)
    return chosen(book, pairs, seed=config.seed, repeat=config.repeat)


def _rules(config: ArenaConfig) -> dict[str, Any]:
    """Give what, beside its players, makes a match what it is."""
    book = None if config.book is None else hashlib.sha256(config.book.read_bytes()).hexdigest()
    played = {name: getattr(config.match, name) for name in ("margin", "patience")}
    test = asdict(config.sprt) if config.early else None
    openings = {"book": book, "plies": config.plies, "seed": config.seed, "repeat": config.repeat}
    return {"openings": openings, "rules": asdict(config.match.rules), **played, "ends_by": test}


class _Match:
    """A match in its directory."""

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

    def play(self, openings: Sequence[Opening], stop: Callable[[], bool]) -> dict[str, Any]:
        """Play what is missing, and write everything."""
        pairs = self._decided()
        if pairs is None and len(self.games) < self.config.games:
            forget(self.out)
            journal = Journal(self.out, self.games)

            def report(record: GameRecord) -> None:
                nonlocal pairs
                journal.add(record)
                self.games[record.game] = record
                pairs = self._decided()
                self._tick()

            try:
                play(
                    self.players,
                    openings,
                    self.config.match,
                    done=list(self.games),
                    report=report,
                    stop=lambda: pairs is not None or stop(),
                )
            finally:
                journal.close()
        counted = self._counted(pairs)
        finished = pairs is not None or len(counted) == self.config.games
        if finished:
            write_all(self.out, counted, self._names(), self._clock())
        summary = self._summary(counted, finished)
        publish_json(self.out, SUMMARY, summary)
        return summary

    def _decided(self) -> int | None:
        """Give how many pairs decided the test, None while the match goes on or where the test ends nothing."""
        if not self.config.early:
            return None
        points = [self.games[number].points if number in self.games else None for number in range(self.config.games)]
        return decided(points, self.config.sprt)

    def _counted(self, pairs: int | None) -> list[GameRecord]:
        """Give the games that count, by number."""
        end = self.config.games if pairs is None else 2 * pairs
        return [self.games[number] for number in sorted(self.games) if number < end]

    def _tick(self) -> None:
        points = [game.points for game in self.games.values()]
        rate = (len(points) - self.before) / max(1e-9, time.perf_counter() - self.begun)
        self.progress(
            Tick(len(points), self.config.games, "games", {"score": sum(points) / len(points), "games/s": rate})
        )

    def _names(self) -> tuple[str, str]:
        first, second = (player.name for player in self.players)
        return (first, second) if first != second else (f"{first} (A)", f"{second} (B)")

    def _clock(self) -> str:
        """Give the PGN's TimeControl."""
        limits = [player.limit for player in self.players]
        clocks = {limit.clock or "-" for limit in limits}
        return clocks.pop() if len(clocks) == 1 else "?"

    def _summary(self, games: list[GameRecord], finished: bool) -> dict[str, Any]:
        """Sum the games up; statistics are of whole pairs."""
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
    """Write a summary for people."""
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
    if summary["latest_ms"] is not None and not any(summary["forfeits"].values()):
        lines.append("forfeits: none")
    if summary["latest_ms"] is not None:
        lines.append(f"latest move: A {summary['latest_ms']['a']} ms, B {summary['latest_ms']['b']} ms behind its time")
    return "\n".join(lines)
