"""Play matches between several players, one folder per match, with a table of Elo differences."""

import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from engine.match import MatchError, PlayerError
from engine.progress import Progress, Stop, never, silent
from pipeline.matches.config import ArenaConfig, SideConfig
from pipeline.matches.match import MatchFilesError, format_elo, play_match
from pipeline.matches.players import make_player
from pipeline.storage.job_folder import MATCHES_KIND, JobFolder
from pipeline.storage.stores import publish_bytes, publish_json
from pipeline.storage.tables import format_markdown

ROW_FIELDS = (
    "a", "b", "games", "wins", "draws", "losses", "score", "elo", "elo_low", "elo_high", "los",
    "forfeits",
)  # fmt: skip
"""Fields of a match's summary that make up its row in matches.json."""


def arena(
    sides: Sequence[SideConfig],
    config: ArenaConfig,
    out: Path,
    *,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Play a match of two players, or a round robin of more; return the summary or the table.

    Raises PlayerError for fewer than two players, and the errors of `play_match`.
    """
    if len(sides) < 2:
        raise PlayerError("a match needs two players or more")
    if len(sides) == 2:
        return play_match(sides[0], sides[1], config, out, progress=progress, stop=stop)
    return play_matches(list(combinations(sides, 2)), config, out, progress=progress, stop=stop)


def play_matches(
    pairings: Sequence[tuple[SideConfig, SideConfig]],
    config: ArenaConfig,
    out: Path,
    *,
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Play a match for each pairing, each in its own folder of `out`.

    Writes matches.json and table.md, and returns their content as `rows` and `text`. Every player
    is started once before the first match, so that an error in its settings shows early. After
    Stopped, the same call resumes. Raises the errors of `play_match`, and PlayerError for duplicate
    pairings.
    """
    if len({frozenset(pair) for pair in pairings}) < len(pairings):
        raise PlayerError("a player is listed twice: give the two different limits or options")
    sides = list(dict.fromkeys(side for pair in pairings for side in pair))
    names = [
        re.sub(r"[^A-Za-z0-9.=+]+", "-", make_player(side, config.seed)[0].name).strip("-")
        for side in sides
    ]
    if len(set(names)) < len(names):
        names = [f"{name}-{number}" for number, name in enumerate(names, 1)]
    folders = dict(zip(sides, names, strict=True))
    folder = JobFolder(out, MATCHES_KIND, MatchFilesError, MatchError)
    with folder.lock():
        folder.claim({})
        rows: list[dict[str, Any]] = []
        for a, b in pairings:
            match = out / f"{folders[a]}-against-{folders[b]}"
            summary = play_match(a, b, config, match, progress=progress, stop=stop)
            rows.append({"match": match.name, **{name: summary[name] for name in ROW_FIELDS}})
        table = format_matches(rows)
        publish_json(out, "matches.json", {"rows": rows})
        publish_bytes(out, "table.md", table.encode() + b"\n")
    return {"out": str(out), "rows": rows, "text": table}


def format_matches(rows: Sequence[dict[str, Any]]) -> str:
    """Format matches as a Markdown table: Elo with its 95 % interval, score and forfeits."""
    return format_markdown(
        "player|opponent|Elo difference (95 %)|score|+ = -|forfeits",
        (
            (
                row["a"],
                row["b"],
                format_elo(row),
                f"{row['score']:.3f}",
                f"{row['wins']} {row['draws']} {row['losses']}",
                f"{sum(sum(kinds.values()) for kinds in row['forfeits'].values())}",
            )
            for row in rows
        ),
    )
