"""Write the data card of a dataset from its manifest and the counts of its games."""

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
"""Columns of the games table with counted values."""
QUANTILE_COLUMNS = {"rating": ("white_elo", "black_elo"), "plies": ("plies",)}
"""16-bit quantities with quantiles in the card, and their columns in the games table."""
MAX_VALUES = 1 << 16
"""Maximum number of distinct values counted per column. Only a hostile dump has more; then the most
frequent ones are kept."""


class GameCounts:
    """Counts of used games by the values of COUNTED_COLUMNS and QUANTILE_COLUMNS."""

    def __init__(self) -> None:
        self.values: dict[str, Counter[Any]] = {name: Counter() for name in COUNTED_COLUMNS}
        self.numbers: dict[str, NDArray[np.int64]] = {
            name: np.zeros(1 << 16, dtype=np.int64) for name in QUANTILE_COLUMNS
        }

    def add(self, games: pa.Table) -> None:
        """Count the used games of a table."""
        if games["dropped"].null_count < len(games):
            games = games.filter(pc.is_null(games["dropped"]))
        for name, counter in self.values.items():
            for pair in pc.value_counts(games[name]).to_pylist():
                counter[pair["values"]] += pair["counts"]
            if len(counter) > MAX_VALUES:
                self.values[name] = Counter(dict(counter.most_common(MAX_VALUES // 2)))
        for name, columns in QUANTILE_COLUMNS.items():
            for column in columns:
                present = games[column].drop_null()
                if len(present):
                    self.numbers[name] += np.bincount(present.to_numpy(), minlength=1 << 16)

    def shares(self, name: str, rows: int) -> list[dict[str, Any]]:
        """Return the count and share of games for the most frequent values of a column."""
        counter = self.values[name]
        ordered = sorted(counter.items(), key=lambda item: (-item[1], item[0] is not None, item[0]))
        total = counter.total()
        return [
            {name: value, "games": count, "%": round(count * 100 / total, 1)}
            for value, count in ordered[:rows]
        ]

    def quantiles(self, name: str) -> list[int | None]:
        """Return the QUANTILES of a quantity, each the nearest value; None without values."""
        ends = self.numbers[name].cumsum()
        if not ends[-1]:
            return [None] * len(QUANTILES)
        places = np.rint(np.array(QUANTILES) * (ends[-1] - 1))
        return [int(value) for value in np.searchsorted(ends, places, side="right")]


def data_card(manifest: Mapping[str, Any], games: GameCounts) -> str:
    """Return a dataset's description in Markdown."""
    splits = [
        {"split": split, "games": count, "positions": manifest["positions"][split]}
        for split, count in sorted(games.values["split"].items())
    ]
    spread = [
        {"quantile": quantile, "rating": rating, "plies": plies}
        for quantile, rating, plies in zip(
            QUANTILES, games.quantiles("rating"), games.quantiles("plies"), strict=True
        )
    ]
    read, used, reasons = (manifest["games"][name] for name in ("read", "used", "dropped"))
    dropped = []
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
        first = manifest.get("examples", {}).get(reason, {"where": "", "text": ""})
        row = {"dropped": reason, "games": count}
        dropped.append(row | {"first at": first["where"], "text": first["text"]})
    refused = ", ".join(
        f"{count:,} by {reason}" for reason, count in manifest.get("positions_dropped", {}).items()
    )
    sources = (
        f"- {escape_markdown(one['name'])}, sha256 `{one['sha256']}`" for one in manifest["sources"]
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
        "## Ratings of players, lengths of games\n\n" + format_markdown_table(spread),
        "## Results (White's)\n\n" + format_markdown_table(games.shares("result", 3)),
        "## Time controls\n\n" + format_markdown_table(games.shares("time_control", 12)),
        "## Terminations\n\n" + format_markdown_table(games.shares("termination", 8)),
        "## Dropped games\n\n" + (format_markdown_table(dropped) if dropped else "None."),
        *([f"## Dropped positions of used games\n\n{refused}"] if refused else []),
    ]
    return "\n\n".join(parts) + "\n"
