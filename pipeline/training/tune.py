"""Fine-tune a checkpoint on human rows and on self-play rows that are used a limited number of
times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.progress import Progress, Stop, never, silent
from pipeline.dataset.batches import Batches
from pipeline.dataset.dataset import Dataset
from pipeline.dataset.mixture import Mixture, Source, count_human_rows
from pipeline.errors import DatasetError
from pipeline.training.train import (
    count_positions,
    describe_data,
    describe_start,
    list_datasets,
    open_validation,
    run_folder,
    select_columns,
)

if TYPE_CHECKING:
    from model.training.config import TrainConfig

BLOCK_ROWS = 1 << 16
"""Number of rows that are shuffled together: 40 MB of planes. Each dataset keeps two such blocks in
memory."""


@dataclass(frozen=True, slots=True)
class _UsedRows:
    """One source of training rows: a self-play dataset, or all human datasets together."""

    entries: Sequence[Mapping[str, Any]]
    """Card entries of the datasets."""
    batches: Batches
    """The rows, in the order in which they are used."""
    first: int
    """Rows drawn before this run, repetitions included."""
    takes: int = 0
    """Rows to draw in this run."""

    @property
    def source(self) -> Source:
        """Return the source for a Mixture."""
        return Source(self.batches, self.first, self.takes)

    def row(self, drawn: int) -> dict[str, Any]:
        """Return the card entry after `drawn` rows; `uses` is uses per row over all runs."""
        rows, names = self.batches.rows, [entry["name"] for entry in self.entries]
        hashes = [entry["manifest_sha256"] for entry in self.entries]
        uses = (self.first + drawn) / rows
        return {"names": names, "hashes": hashes, "rows": rows, "drawn": drawn, "uses": uses}


def tune_on(
    selfplay: Sequence[Path],
    human: Sequence[Path],
    start: Path,
    config: "TrainConfig",
    out: Path,
    *,
    human_share: float,
    most_uses: float,
    spent: Mapping[str, float],
    progress: Progress = silent,
    stop: Stop = never,
) -> dict[str, Any]:
    """Train the checkpoint `start` on self-play and human datasets; return the new card.

    `human_share` is the share of human rows in each batch (0 without human datasets). The rest are
    self-play rows, drawn from each dataset in proportion to the uses its rows have left. An epoch
    is one pass over the self-play rows. The run ends early once these rows have been used
    `most_uses` times on average.

    `spent` maps manifest hashes to the earlier uses per row. The run continues each dataset's order
    after these uses: with the same `config.seed`, no row is used twice before every row was used
    once. The card's `uses` has the totals after this run; `add_uses` collects them.

    Validation is on the human datasets. Raises DatasetError (no rows, or no uses left), and the
    errors of `model.training.loop.train`.
    """
    from model.checkpoint import read_card
    from model.network.preset import preset_from_row
    from model.training.loop import train

    share = Fraction(human_share).limit_denominator(10_000) if human else Fraction(0)
    preset = preset_from_row(read_card(start)["preset"])
    columns = select_columns(config, preset)
    selfplay_datasets = [Dataset.open(path) for path in selfplay]
    human_datasets = [Dataset.open(path) for path in human]
    selfplay_data, human_data = describe_data(selfplay_datasets), describe_data(human_datasets)
    available = [
        _open_rows([dataset], [entry], config, columns, spent)
        for dataset, entry in zip(selfplay_datasets, selfplay_data["datasets"], strict=True)
    ]
    steps, selfplay_rows = _plan(config, available, share, most_uses)
    human_used = list[_UsedRows]()
    if share:
        rows = _open_rows(human_datasets, human_data["datasets"], config, columns, spent)
        human_used = [replace(rows, takes=count_human_rows(steps, config.batch_size, share))]
    used = [*human_used, *selfplay_rows]
    mixture = Mixture(
        human_used[0].source if human_used else None,
        [rows.source for rows in selfplay_rows],
        batch_size=config.batch_size,
        human_share=share,
        seed=config.seed,
    )
    plan = {
        "human_share": float(share),
        "most_uses": most_uses,
        "takes": [rows.row(rows.takes) for rows in used],
    }
    folder = run_folder(out, [*selfplay_datasets, *human_datasets, start])
    card = train(
        replace(config, steps=steps, epochs=None),
        preset,
        mixture.from_step,
        out,
        validation=open_validation(human_datasets, config, columns),
        data={
            "datasets": [*(human_data["datasets"] if share else []), *selfplay_data["datasets"]],
            "start": _flatten(describe_start(start)),
            "mixture": plan,
        },
        progress=progress,
        stop=stop,
        start=start,
        check_output=folder.begin,
    )
    folder.finish()
    drawn = zip(used, mixture.count_rows(0, card["step"]).tolist(), strict=True)
    return {**card, "uses": [rows.row(count) for rows, count in drawn]}


def add_uses(card: Mapping[str, Any], spent: Mapping[str, float]) -> dict[str, float]:
    """Return `spent` updated with a card's uses, for the next `tune_on`."""
    return {**spent, **{name: use["uses"] for use in card["uses"] for name in use["hashes"]}}


def _open_rows(
    datasets: Sequence[Dataset],
    entries: Sequence[Mapping[str, Any]],
    config: "TrainConfig",
    columns: Sequence[str],
    spent: Mapping[str, float],
) -> _UsedRows:
    """Open datasets as one source; its earlier uses are the maximum over the datasets."""
    batches = Batches(
        datasets,
        batch_size=config.batch_size,
        seed=config.seed,
        columns=columns,
        people_only=not config.engine_moves,
        block_rows=BLOCK_ROWS,
    )
    before = max(spent.get(str(entry["manifest_sha256"]), 0.0) for entry in entries)
    return _UsedRows(entries, batches, first=round(before * batches.rows))


def _plan(
    config: "TrainConfig", uses: Sequence[_UsedRows], share: Fraction, most_uses: float
) -> tuple[int, list[_UsedRows]]:
    """Return the number of steps, and the sources with `takes` set; raises DatasetError."""
    assert config.epochs is not None, "the length of the run is given in epochs"
    left = [max(0, int(most_uses * use.batches.rows + 1e-6) - use.first) for use in uses]
    rows_per_step = config.batch_size * (1 - share)
    rows = sum(use.batches.rows for use in uses)
    steps = min(
        -int(-Fraction(config.epochs) * rows // rows_per_step), int(sum(left) / rows_per_step)
    )
    if steps < 1:
        raise DatasetError(
            f"only {sum(left)} of {rows} self-play positions may still be used, but one batch "
            f"takes {float(rows_per_step):g}: play more games, or raise most_uses"
        )
    wanted = steps * config.batch_size - count_human_rows(steps, config.batch_size, share)
    taken = zip(uses, _divide(wanted, left), strict=True)
    return steps, [replace(use, takes=takes) for use, takes in taken]


def _divide(total: int, weights: Sequence[int]) -> list[int]:
    """Split `total` in proportion to `weights` by largest remainder; no part exceeds its weight."""
    total_weight = sum(weights)
    parts = [total * weight // total_weight for weight in weights]
    by_remainder = sorted(
        range(len(weights)), key=lambda index: -(total * weights[index] % total_weight)
    )
    for index in by_remainder[: total - sum(parts)]:
        parts[index] += 1
    return parts


def _flatten(lineage: dict[str, Any]) -> dict[str, Any]:
    """Flatten the data of a start entry into one list, so that generations do not nest."""
    entries = list_datasets(lineage["data"])
    seen = {entry.get("manifest_sha256", entry["name"]): entry for entry in entries}
    data = {"datasets": list(seen.values())}
    return {**lineage, "positions": count_positions(lineage), "data": data}
