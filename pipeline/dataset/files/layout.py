"""The names in a dataset's folder, and how large its row groups are."""

MANIFEST = "manifest.json"
GAMES = "games.parquet"
CARD = "CARD.md"
SPLITS = ("train", "val", "test")
ROW_GROUP = 32_768
"""Rows of a row group: the unit that batches are shuffled by, about 20 MB unpacked to plane words
(docs/findings.md). A file with larger groups is not of this project, and is refused."""
LARGEST_MANIFEST = 1 << 28
"""Bytes of the largest manifest that is read."""
MOST_GAMES = 1 << 32
"""Games that the column `game` can number, a uint32."""
