"""The data card of a dataset: its content for people, from `games.parquet` and the manifest."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.dataset.files.layout import CARD, GAMES
from pipeline.storage.stores import opened, publish

if TYPE_CHECKING:
    import polars as pl

GROUPS = 32
"""Row groups of the games' table that are read at a time; each has the games of a chunk."""
FIRST = 3
"""Dropped games of each reason whose places are listed."""
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
COUNTED = {
    "split": ("split",),
    "result": ("result",),
    "time_control": ("time_control",),
    "termination": ("termination",),
    "rating": ("white_elo", "black_elo"),
    "plies": ("plies",),
}
"""What used games are counted by, and the columns of the games' table that hold it."""
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


class _Games:
    """Counts of a dataset's games, made some row groups at a time to bound memory."""

    def __init__(self, directory: Path) -> None:
        self.counts: dict[str, Counter[Any]] = {name: Counter() for name in COUNTED}
        self.dropped: Counter[str] = Counter()
        self.first: dict[str, list[tuple[int, int]]] = {}
        """(number of the dump, byte offset in its text) of the first dropped games by reason."""
        with pq.ParquetFile(opened(directory / GAMES)) as file:
            for begin in range(0, file.num_row_groups, GROUPS):
                groups = range(begin, min(begin + GROUPS, file.num_row_groups))
                columns = [*COLUMNS, "dropped", "source", "offset"]
                self._add(file.read_row_groups(groups, columns=columns, use_threads=False))

    def _add(self, games: pa.Table) -> None:
        used = games.filter(pc.is_null(games["dropped"]))
        for name, columns in COUNTED.items():
            for column in columns:
                values, counts = pc.value_counts(used[column]).flatten()
                self.counts[name].update(dict(zip(values.to_pylist(), counts.to_pylist(), strict=True)))
        for reason in pc.unique(games["dropped"]).drop_null().to_pylist():
            refused = games.filter(pc.equal(games["dropped"], reason))
            self.dropped[reason] += len(refused)
            places = refused.slice(0, FIRST).select(["source", "offset"]).to_pylist()  # games are in the dumps' order
            first = self.first.setdefault(reason, [])
            first += [(place["source"], place["offset"]) for place in places[: FIRST - len(first)]]

    def count(self, name: str) -> "pl.DataFrame":
        """Return the numbers of used games by a key of COUNTED, its values ascending."""
        import polars as pl

        counted = self.counts[name]
        return pl.DataFrame({name: list(counted), "games": list(counted.values())}).sort(name)

    def shares(self, name: str, rows: int) -> "pl.DataFrame":
        """Return the numbers and shares of used games by a key of COUNTED, the most frequent first."""
        import polars as pl

        share = (pl.col("games") * 100 / pl.col("games").sum()).round(1).alias("%")
        return self.count(name).with_columns(share).sort("games", name, descending=[True, False]).head(rows)

    def quantiles(self, name: str) -> list[int | None]:
        """Return the QUANTILES of a column of numbers, each the nearest value; None without any."""
        counted = self.count(name).drop_nulls()
        if not len(counted):
            return [None] * len(QUANTILES)
        ends = counted["games"].cum_sum().to_numpy()
        at = np.searchsorted(ends, np.rint(np.array(QUANTILES) * (ends[-1] - 1)), side="right")
        return [int(value) for value in counted[name].to_numpy()[at]]

    def dropped_games(self, dumps: list[str]) -> "pl.DataFrame":
        """Return the numbers of dropped games by reason, and the places of the first, with the dump if there are several."""
        import polars as pl

        places = [
            ", ".join(
                f"{dumps[dump]}: {offset}" if len(dumps) > 1 else str(offset) for dump, offset in self.first[reason]
            )
            for reason in self.dropped
        ]
        columns = {"dropped": list(self.dropped), "games": list(self.dropped.values()), "first at byte": places}
        return pl.DataFrame(columns).sort("games", "dropped", descending=[True, False])


def data_card(directory: Path, manifest: Mapping[str, Any]) -> str:
    """Return a description of a dataset in Markdown: counts, splits, ratings, time controls, results, dropped games."""
    import polars as pl

    games = _Games(directory)
    spread = pl.DataFrame(
        {"quantile": QUANTILES, "rating": games.quantiles("rating"), "plies": games.quantiles("plies")}
    )
    dropped = games.dropped_games([source["name"] for source in manifest["sources"]])
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
        "## Splits, by a hash of each game's moves\n\n" + markdown_table(games.count("split").with_columns(positions)),
        "## Ratings of players, lengths of games\n\n" + markdown_table(spread),
        "## Results (White's)\n\n" + markdown_table(games.shares("result", 3)),
        "## Time controls\n\n" + markdown_table(games.shares("time_control", 12)),
        "## Terminations\n\n" + markdown_table(games.shares("termination", 8)),
        "## Dropped games\n\n" + (markdown_table(dropped) if len(dropped) else "None."),
        *([f"## Dropped positions of used games\n\n{refused}"] if refused else []),
    ]
    return "\n\n".join(parts) + "\n"


def write_card(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Publish the data card beside the manifest."""
    text = data_card(directory, manifest).encode()
    publish(directory, CARD, 0, lambda target: target.write(text))
