"""The data card of a dataset: what is in it, for a person, made by polars from `games.parquet` and the manifest."""

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
"""Row groups of the games' table that are counted together: one is the games of a chunk."""
FIRST = 3
"""Dropped games of each reason whose places are told."""
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
COUNTED = {
    "split": ("split",),
    "result": ("result",),
    "time_control": ("time_control",),
    "termination": ("termination",),
    "rating": ("white_elo", "black_elo"),
    "plies": ("plies",),
}
"""What used games are counted by, and the columns of the games' table that have it."""
COLUMNS = sorted({column for columns in COUNTED.values() for column in columns})


def _cell(value: object) -> str:
    """Write one value; what a dump's tags say is anybody's text, so it is cut, and no markup of it passes."""
    text = "" if value is None else f"{value}"
    return "".join(f"&#{ord(char)};" if char in "|<>&[]`*_\\" else char for char in text[:60] if char.isprintable())


def markdown_table(frame: "pl.DataFrame") -> str:
    """Write a frame as a Markdown table."""
    lines = ["| " + " | ".join(frame.columns) + " |", "|" + "---|" * len(frame.columns)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in frame.rows()]
    return "\n".join(lines)


class _Games:
    """The games of a dataset counted some row groups of the table at a time: memory does not grow with their number."""

    def __init__(self, directory: Path) -> None:
        self.counts: dict[str, Counter[Any]] = {name: Counter() for name in COUNTED}
        self.refused: Counter[str] = Counter()
        self.first: dict[str, list[int]] = {}
        self.used = 0
        with pq.ParquetFile(opened(directory / GAMES)) as file:
            for begin in range(0, file.num_row_groups, GROUPS):
                groups = range(begin, min(begin + GROUPS, file.num_row_groups))
                self._add(file.read_row_groups(groups, columns=[*COLUMNS, "dropped", "offset"], use_threads=False))

    def _add(self, games: pa.Table) -> None:
        kept = pc.is_null(games["dropped"])
        used, refused = games.filter(kept), games.filter(pc.invert(kept))
        self.used += len(used)
        for name, columns in COUNTED.items():
            for column in columns:
                values, counts = pc.value_counts(used[column]).flatten()
                self.counts[name].update(dict(zip(values.to_pylist(), counts.to_pylist(), strict=True)))
        for reason in pc.unique(refused["dropped"]).to_pylist():
            offsets = refused["offset"].filter(pc.equal(refused["dropped"], reason)).to_numpy()
            self.refused[reason] += len(offsets)
            self.first[reason] = sorted([*self.first.get(reason, []), *np.sort(offsets)[:FIRST].tolist()])[:FIRST]

    def by(self, name: str) -> "pl.DataFrame":
        """Count used games by what `COUNTED` has under a name; its values ascend."""
        import polars as pl

        counted = self.counts[name]
        return pl.DataFrame({name: list(counted), "games": list(counted.values())}).sort(name)

    def shares(self, name: str, rows: int) -> "pl.DataFrame":
        """Count used games by a column, most frequent first, with their share."""
        import polars as pl

        counted = self.by(name).sort("games", name, descending=[True, False])
        return counted.head(rows).with_columns((pl.col("games") * 100 / self.used).round(1).alias("%"))

    def quantiles(self, name: str) -> list[int | None]:
        """Give the quantiles of a column of numbers, the nearest value of each; None without any."""
        counted = self.by(name).drop_nulls()
        if not len(counted):
            return [None] * len(QUANTILES)
        ends = counted["games"].cum_sum().to_numpy()
        at = np.searchsorted(ends, np.rint(np.array(QUANTILES) * (ends[-1] - 1)), side="right")
        return [int(value) for value in counted[name].to_numpy()[at]]

    def dropped(self) -> "pl.DataFrame":
        """Count the dropped games by their reason, with where the first are."""
        import polars as pl

        places = [", ".join(map(str, self.first[reason])) for reason in self.refused]
        columns = {"dropped": list(self.refused), "games": list(self.refused.values()), "first at byte": places}
        return pl.DataFrame(columns).sort("games", "dropped", descending=[True, False])


def data_card(directory: Path, manifest: Mapping[str, Any]) -> str:
    """Describe a dataset in Markdown: counts, splits, ratings, time controls, lengths, results, and what was dropped."""
    import polars as pl

    games = _Games(directory)
    spread = pl.DataFrame(
        {"quantile": QUANTILES, "rating": games.quantiles("rating"), "plies": games.quantiles("plies")}
    )
    dropped = games.dropped()
    positions = (
        pl.col("split").replace_strict(manifest["positions"], default=0, return_dtype=pl.Int64).alias("positions")
    )
    splits = games.by("split").with_columns(positions)
    refused = ", ".join(f"{count:,} by {reason}" for reason, count in manifest.get("positions_dropped", {}).items())
    sources = "\n".join(f"- {source['name']}, sha256 `{source['sha256']}`" for source in manifest["sources"])
    parts = [
        f"# {manifest['positions']['total']:,} positions of {manifest['games']['used']:,} games",
        sources,
        f"Encoding {manifest['encoding_version']} (`{manifest['moves_hash']}`), shard format {manifest['format_version']}. "
        f"Of {manifest['games']['read']:,} games read, {sum(manifest['games']['dropped'].values()):,} were dropped.",
        f"{manifest['label_collisions']:,} moves are under-promotions, which share the label of the queen's. Positions that "
        "stand more than once, and those of a test that train holds too, are counted by `fianchetto audit`.",
        "## Splits, by a hash of each game's moves\n\n" + markdown_table(splits),
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
