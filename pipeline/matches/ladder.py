"""A ladder: one player at several simulation counts, or on a clock, against fixed opponents: a table of Elo differences."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.match.config import PlayerError
from engine.progress import Progress, Stop, never, silent
from pipeline.errors import Stopped
from pipeline.evaluation.render import markdown, publish_table
from pipeline.matches.arena import arena
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.files import MatchFilesError
from pipeline.matches.players import player_of
from pipeline.storage.claims import LADDER, MATCH, is_free, is_of, require_own
from pipeline.storage.preflight import require_folder


def opponents(
    engine: str, nodes: Sequence[int], elos: Sequence[int], elo_nodes: int, hand_written: int, tc: str | None = None
) -> list[SideConfig]:
    """Return the opponents: the hand-written player, the engine at limited strengths, the engine at fixed nodes.

    With a clock `tc`, the first two play on it.
    """
    found = [SideConfig(who="hand-written", simulations=hand_written, tc=tc)] if hand_written else []
    for elo in elos:
        options = ("Threads=1", "Hash=16", "UCI_LimitStrength=true", f"UCI_Elo={elo}")
        found.append(SideConfig(who=f"uci:{engine}", nodes=None if tc else elo_nodes, tc=tc, options=options))
    return found + [SideConfig(who=f"uci:{engine}", nodes=count, options=("Threads=1", "Hash=16")) for count in nodes]


def ladder(
    who: str,
    rungs: Sequence[int | str],
    against: Sequence[SideConfig],
    config: ArenaConfig,
    out: Path,
    *,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Play every match, each in a directory of its own; return `rows` and the table as `text`, which are written to `out`.

    `rungs` are the player's limits: simulations, or clocks as in SideConfig. Every player is started once before the first
    match. Raises what `arena` raises, and Stopped, after which the same call continues.
    """
    if not rungs or not against:
        raise PlayerError("a ladder needs at least one simulation count and one opponent")
    climbers = [
        SideConfig(who=who, tc=rung) if isinstance(rung, str) else SideConfig(who=who, simulations=rung)
        for rung in rungs
    ]
    for side in (climbers[0], *against):
        player_of(side, config.seed)
    require_folder(out)
    require_own(out, LADDER, MatchFilesError, ours=lambda entry: is_of(entry, MATCH) or is_free(entry))
    rows: list[dict[str, Any]] = []
    for a, rung in zip(climbers, rungs, strict=True):
        for opponent in against:
            place = out / f"{_plain(str(rung))}-{_place(opponent)}"
            summary = arena(a, opponent, config, place, progress=progress, stop=stop)
            if not summary["finished"]:
                raise Stopped(f"stopped in {place}; run the same command to continue")
            row = {name: summary[name] for name in _KEPT}
            rows.append({"tc" if isinstance(rung, str) else "simulations": rung, "match": place.name, **row})
    return publish_table(out, "ladder", rows, table_of(rows), player=who)


_KEPT = ("a", "b", "games", "wins", "draws", "losses", "score", "elo", "elo_low", "elo_high", "los", "forfeits")


def _place(opponent: SideConfig) -> str:
    """Return an opponent's part of a directory's name."""
    words = [
        opponent.who.removeprefix("uci:"),
        *(option for option in opponent.options if option.startswith("UCI_Elo")),
    ]
    words.append(opponent.tc or str(opponent.nodes or opponent.simulations))
    return _plain("-".join(words))


def _plain(words: str) -> str:
    """Return words with every run of other characters than letters, digits, `.`, `=` and `+` as a hyphen."""
    return re.sub(r"[^A-Za-z0-9.=+]+", "-", words).strip("-")


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table in Markdown: Elo of the player against each opponent, with the 95 % interval and the games."""
    return markdown(
        "player|opponent|Elo difference (95 %)|score|+ = -|forfeits",
        (
            (
                row["a"],
                row["b"],
                f"{row['elo']:+.0f} [{row['elo_low']:+.0f}, {row['elo_high']:+.0f}]",
                f"{row['score']:.3f}",
                f"{row['wins']} {row['draws']} {row['losses']}",
                f"{sum(sum(kinds.values()) for kinds in row['forfeits'].values())}",
            )
            for row in rows
        ),
    )
