"""The data card of a dataset, written from `games.parquet` and the manifest."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.dataset.files.layout import CARD
from pipeline.dataset.files.shard_files import games_tables
from pipeline.storage.stores import publish

if TYPE_CHECKING:
    import polars as pl

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
COUNTED = {
    "split": ("split",),
    "result": ("result",),
    "time_control": ("time_control",),
    "termination": ("termination",),
    "rating": ("white_elo", "black_elo"),
    "plies": ("plies",),
}
"""Keys that used games are counted by, with their columns in the games' table."""
TABLES = 64
"""Tables whose counts are kept apart before they are added up."""
COLUMNS = sorted({column for columns in COUNTED.values() for column in columns})


def _cell(value: object) -> str:
    """Return a value as text without markup, cut to 60 characters: tags of a dump and its name may hold anything."""
    text = "" if value is None else f"{value}"
    return "".join(f"&#{ord(char)};" if char in "|<>&[]`*\\" else char for char in text[:60] if char.isprintable())


def markdown_table(frame: "pl.DataFrame") -> str:
    """Return a frame as a Markdown table."""
    lines = ["| " + " | ".join(frame.columns) + " |", "|" + "---|" * len(frame.columns)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in frame.rows()]
    return "\n".join(lines)


def _count_games(directory: Path, manifest: Mapping[str, Any]) -> "dict[str, pl.DataFrame]":
    """Return the numbers of used games by each key of COUNTED."""
    import polars as pl

    parts: dict[str, list[pl.DataFrame]] = {name: [] for name in COUNTED}
    for _, table in games_tables(directory, manifest, [*COLUMNS, "dropped"]):
        used = pl.DataFrame(pl.from_arrow(table)).filter(pl.col("dropped").is_null())
        for name, columns in COUNTED.items():
            values = pl.concat([used[column].alias(name) for column in columns])
            parts[name].append(values.value_counts(name="games"))
            if len(parts[name]) == TABLES:
                parts[name] = [_sum_games(parts[name])]
    return {name: _sum_games(frames).sort(name) for name, frames in parts.items()}


def _sum_games(frames: "Sequence[pl.DataFrame]") -> "pl.DataFrame":
    """Return the sums of `games` by the first column."""
    import polars as pl

    return pl.concat(frames).group_by(frames[0].columns[0]).agg(pl.col("games").sum())


def _shares(counted: "pl.DataFrame", rows: int) -> "pl.DataFrame":
    """Return the numbers and shares of games by the first column, the most frequent first."""
    import polars as pl

    share = (pl.col("games") * 100 / pl.col("games").sum()).round(1).alias("%")
    return counted.with_columns(share).sort("games", counted.columns[0], descending=[True, False]).head(rows)


def _quantiles(counted: "pl.DataFrame") -> list[int | None]:
    """Return the QUANTILES of the first column, each the nearest value; None without any."""
    counted = counted.drop_nulls()
    if not len(counted):
        return [None] * len(QUANTILES)
    ends = counted["games"].cum_sum().to_numpy()
    at = np.searchsorted(ends, np.rint(np.array(QUANTILES) * (ends[-1] - 1)), side="right")
    return [int(value) for value in counted[counted.columns[0]].to_numpy()[at]]


def data_card(directory: Path, manifest: Mapping[str, Any]) -> str:
    """Return a description of a dataset in Markdown: counts, splits, ratings, time controls, results, dropped games."""
    import polars as pl

    games = _count_games(directory, manifest)
    spread = pl.DataFrame({"quantile": QUANTILES} | {name: _quantiles(games[name]) for name in ("rating", "plies")})
    reasons = sorted(manifest["games"]["dropped"].items(), key=lambda item: -item[1])
    dropped = pl.DataFrame(reasons, schema=["dropped", "games"], orient="row")
    positions = (
        pl.col("split").replace_strict(manifest["positions"], default=0, return_dtype=pl.Int64).alias("positions")
    )
    refused = ", ".join(f"{count:,} by {reason}" for reason, count in manifest.get("positions_dropped", {}).items())
    parts = [
        f"# {manifest['positions']['total']:,} positions of {manifest['games']['used']:,} games",
        "\n".join(f"- {_cell(source['name'])}, sha256 `{source['sha256']}`" for source in manifest["sources"]),
        f"Encoding {manifest['encoding_version']} (`{manifest['moves_hash']}`), shard format {manifest['format_version']}. "
        f"Of {manifest['games']['read']:,} games read, {sum(manifest['games']['dropped'].values()):,} were dropped.",
        f"{manifest['label_collisions']:,} moves are under-promotions, which share the label of the queen's. `fianchetto "
        "audit` counts duplicate positions, and those of a test that train holds too.",
        "## Splits, by a hash of each game's moves\n\n" + markdown_table(games["split"].with_columns(positions)),
        "## Ratings of players, lengths of games\n\n" + markdown_table(spread),
        "## Results (White's)\n\n" + markdown_table(_shares(games["result"], 3)),
        "## Time controls\n\n" + markdown_table(_shares(games["time_control"], 12)),
        "## Terminations\n\n" + markdown_table(_shares(games["termination"], 8)),
        "## Dropped games\n\n" + (markdown_table(dropped) if len(dropped) else "None."),
        *([f"## Dropped positions of used games\n\n{refused}"] if refused else []),
    ]
    return "\n\n".join(parts) + "\n"


def write_card(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Publish the data card beside the manifest."""
    text = data_card(directory, manifest).encode()
    publish(directory, CARD, 0, lambda target: target.write(text))
