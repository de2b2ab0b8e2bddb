"""Describe a dataset in Markdown (its data card), from the manifest and counts of its games."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.storage.tables import escape_markdown, format_markdown_table

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
COUNTED_COLUMNS = ("split", "result", "time_control", "termination")
"""Columns of the games table whose values are counted."""
QUANTILE_COLUMNS = {"rating": ("white_elo", "black_elo"), "plies": ("plies",)}
"""Quantities of 16 bits whose quantiles are shown, with their columns in the games table."""
MAX_COUNTED_VALUES = 1 << 16
"""Maximum number of distinct values to count in a column. Only hostile dumps have more, of which
the most frequent ones are kept."""


class GameCounts:
    """Counts of used games by the values of COUNTED_COLUMNS and QUANTILE_COLUMNS."""

    def __init__(self) -> None:
        self.values: dict[str, Counter[Any]] = {name: Counter() for name in COUNTED_COLUMNS}
        self.histograms: dict[str, NDArray[np.int64]] = {
            name: np.zeros(1 << 16, dtype=np.int64) for name in QUANTILE_COLUMNS
        }

    def add(self, games: pa.Table) -> None:
        """Count the used games of a table."""
        if games["dropped"].null_count < len(games):
            games = games.filter(pc.is_null(games["dropped"]))
        for name, counter in self.values.items():
            for pair in pc.value_counts(games[name]).to_pylist():
                counter[pair["values"]] += pair["counts"]
            if len(counter) > MAX_COUNTED_VALUES:
                self.values[name] = Counter(dict(counter.most_common(MAX_COUNTED_VALUES // 2)))
        for name, columns in QUANTILE_COLUMNS.items():
            for column in columns:
                present = games[column].drop_null()
                if len(present):
                    self.histograms[name] += np.bincount(present.to_numpy(), minlength=1 << 16)

    def list_frequent(self, name: str, limit: int) -> list[dict[str, Any]]:
        """Return a column's most frequent values with their numbers and percentages of games."""
        counter = self.values[name]
        ordered = sorted(counter.items(), key=lambda item: (-item[1], item[0] is not None, item[0]))
        total = counter.total()
        return [
            {name: value, "games": count, "%": round(count * 100 / total, 1)}
            for value, count in ordered[:limit]
        ]

    def compute_quantiles(self, name: str) -> list[int | None]:
        """Return the QUANTILES of a quantity, by the nearest rank; all None without values."""
        cumulative = self.histograms[name].cumsum()
        if not cumulative[-1]:
            return [None] * len(QUANTILES)
        ranks = np.rint(np.array(QUANTILES) * (cumulative[-1] - 1))
        return [int(value) for value in np.searchsorted(cumulative, ranks, side="right")]


def format_data_card(manifest: Mapping[str, Any], games: GameCounts) -> str:
    """Return the data card of a dataset."""
    splits = [
        {"split": split, "games": count, "positions": manifest["positions"][split]}
        for split, count in sorted(games.values["split"].items())
    ]
    ratings, lengths = (games.compute_quantiles(name) for name in ("rating", "plies"))
    quantiles = [
        {"quantile": quantile, "rating": rating, "plies": plies}
        for quantile, rating, plies in zip(QUANTILES, ratings, lengths, strict=True)
    ]
    read, used, reasons = (manifest["games"][name] for name in ("read", "used", "dropped"))
    dropped_games = []
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
        first = manifest.get("examples", {}).get(reason, {"where": "", "text": ""})
        row = {"dropped": reason, "games": count}
        dropped_games.append(row | {"first at": first["where"], "text": first["text"]})
    dropped_positions = ", ".join(
        f"{count:,} by {reason}" for reason, count in manifest.get("positions_dropped", {}).items()
    )
    sources = (
        f"- {escape_markdown(dump['name'])}, sha256 `{dump['sha256']}`"
        for dump in manifest["sources"]
    )
    parts = [
        f"# {manifest['positions']['total']:,} positions of {used:,} games",
        "\n".join(sources),
        f"Encoding {manifest['encoding_version']} (`{manifest['moves_hash']}`), shard format "
        f"{manifest['format_version']}. "
        f"Of {read:,} games read, {sum(reasons.values()):,} were dropped.",
        f"{manifest['label_collisions']:,} moves are under-promotions, which share the label of "
        "the promotion to a queen. `fianchetto audit` counts duplicate positions, and test "
        "positions that also occur in train.",
        "## Splits, by a hash of each game's moves\n\n" + format_markdown_table(splits),
        "## Ratings of players, lengths of games\n\n" + format_markdown_table(quantiles),
        "## Results (White's)\n\n" + format_markdown_table(games.list_frequent("result", 3)),
        "## Time controls\n\n" + format_markdown_table(games.list_frequent("time_control", 12)),
        "## Terminations\n\n" + format_markdown_table(games.list_frequent("termination", 8)),
        "## Dropped games\n\n"
        + (format_markdown_table(dropped_games) if dropped_games else "None."),
    ]
    if dropped_positions:
        parts.append(f"## Dropped positions of used games\n\n{dropped_positions}")
    return "\n\n".join(parts) + "\n"
