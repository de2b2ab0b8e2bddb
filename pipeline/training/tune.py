"""Fine-tune a checkpoint on human rows and self-play rows; each self-play row has a limited number
of uses.
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
    open_run_folder,
    open_validation,
    select_columns,
)

if TYPE_CHECKING:
    from model.training.config import TrainConfig

BLOCK_ROWS = 1 << 16
"""Number of rows that are shuffled together, 40 MB of planes; each dataset has two such blocks in
memory."""


@dataclass(frozen=True, slots=True)
class _RowSource:
    """One source of training rows: a self-play dataset, or all human datasets together."""

    entries: Sequence[Mapping[str, Any]]
    """Card entries of the datasets."""
    batches: Batches
    """The rows, in the order in which they are used."""
    first: int
    """Number of rows drawn before this run, repetitions included."""
    takes: int = 0
    """Number of rows to draw in this run."""

    @property
    def source(self) -> Source:
        """These rows as a source of a Mixture."""
        return Source(self.batches, self.first, self.takes)

    def describe_uses(self, drawn: int) -> dict[str, Any]:
        """Return the card entry after `drawn` rows; `uses` is the mean number of uses of a row."""
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

    `human_share` is the share of human rows in each batch, ignored without human datasets. The rest
    are self-play rows, drawn from each dataset in proportion to the uses that its rows have left.
    An epoch is one pass over the self-play rows. The run ends early once these rows have been used
    `most_uses` times on average.

    `spent` maps each dataset's manifest hash to the mean number of earlier uses of its rows. The
    run continues each dataset's order after these uses: with the same `config.seed`, no row is used
    twice before every row was used once. The card's `uses` has the totals after this run;
    `add_uses` adds them to `spent`.

    Validation is on the human datasets. Raises DatasetError if there are no rows or no uses left,
    and the errors of `model.training.loop.train`.
    """
    from model.checkpoint import read_card
    from model.network.preset import preset_from_dict
    from model.training.loop import train

    share = Fraction(human_share).limit_denominator(10_000) if human else Fraction(0)
    preset = preset_from_dict(read_card(start)["preset"])
    columns = select_columns(config, preset)
    selfplay_datasets = [Dataset.open(path) for path in selfplay]
    human_datasets = [Dataset.open(path) for path in human]
    selfplay_data, human_data = describe_data(selfplay_datasets), describe_data(human_datasets)
    available = [
        _open_source([dataset], [entry], config, columns, spent)
        for dataset, entry in zip(selfplay_datasets, selfplay_data["datasets"], strict=True)
    ]
    steps, selfplay_sources = _plan_steps(config, available, share, most_uses)
    human_sources = list[_RowSource]()
    if share:
        source = _open_source(human_datasets, human_data["datasets"], config, columns, spent)
        human_sources = [replace(source, takes=count_human_rows(steps, config.batch_size, share))]
    sources = [*human_sources, *selfplay_sources]
    mixture = Mixture(
        human_sources[0].source if human_sources else None,
        [source.source for source in selfplay_sources],
        batch_size=config.batch_size,
        human_share=share,
        seed=config.seed,
    )
    plan = {
        "human_share": float(share),
        "most_uses": most_uses,
        "takes": [source.describe_uses(source.takes) for source in sources],
    }
    folder = open_run_folder(out, [*selfplay_datasets, *human_datasets, start])
    card = train(
        replace(config, steps=steps, epochs=None),
        preset,
        mixture.from_step,
        out,
        validation=open_validation(human_datasets, config, columns),
        data={
            "datasets": [*(human_data["datasets"] if share else []), *selfplay_data["datasets"]],
            "start": _flatten_lineage(describe_start(start)),
            "mixture": plan,
        },
        progress=progress,
        stop=stop,
        start=start,
        check_output=folder.begin,
    )
    folder.finish()
    drawn = zip(sources, mixture.count_rows(0, card["step"]).tolist(), strict=True)
    return {**card, "uses": [source.describe_uses(count) for source, count in drawn]}


def add_uses(card: Mapping[str, Any], spent: Mapping[str, float]) -> dict[str, float]:
    """Return `spent` with the uses of a card from `tune_on`, for the next run."""
    return {**spent, **{name: use["uses"] for use in card["uses"] for name in use["hashes"]}}


def _open_source(
    datasets: Sequence[Dataset],
    entries: Sequence[Mapping[str, Any]],
    config: "TrainConfig",
    columns: Sequence[str],
    spent: Mapping[str, float],
) -> _RowSource:
    """Open datasets as one source of rows; its earlier uses are those of the most used dataset."""
    batches = Batches(
        datasets,
        batch_size=config.batch_size,
        seed=config.seed,
        columns=columns,
        people_only=not config.engine_moves,
        block_rows=BLOCK_ROWS,
    )
    before = max(spent.get(str(entry["manifest_sha256"]), 0.0) for entry in entries)
    return _RowSource(entries, batches, first=round(before * batches.rows))


def _plan_steps(
    config: "TrainConfig", sources: Sequence[_RowSource], share: Fraction, most_uses: float
) -> tuple[int, list[_RowSource]]:
    """Return the number of steps, and the sources with `takes` set; `share` is of human rows."""
    assert config.epochs is not None, "the length of the run is given in epochs"
    left = [max(0, int(most_uses * one.batches.rows + 1e-6) - one.first) for one in sources]
    rows_per_step = config.batch_size * (1 - share)
    rows = sum(source.batches.rows for source in sources)
    steps = min(
        -int(-Fraction(config.epochs) * rows // rows_per_step), int(sum(left) / rows_per_step)
    )
    if steps < 1:
        raise DatasetError(
            f"only {sum(left)} of {rows} self-play positions may still be used, but one batch "
            f"takes {float(rows_per_step):g}: play more games, or increase most_uses"
        )
    total = steps * config.batch_size - count_human_rows(steps, config.batch_size, share)
    takes = _split_in_proportion(total, left)
    return steps, [replace(one, takes=take) for one, take in zip(sources, takes, strict=True)]


def _split_in_proportion(total: int, weights: Sequence[int]) -> list[int]:
    """Split `total` in proportion to `weights` by largest remainder; no part exceeds its weight."""
    total_weight = sum(weights)
    parts = [total * weight // total_weight for weight in weights]
    by_remainder = sorted(
        range(len(weights)), key=lambda index: -(total * weights[index] % total_weight)
    )
    for index in by_remainder[: total - sum(parts)]:
        parts[index] += 1
    return parts


def _flatten_lineage(lineage: dict[str, Any]) -> dict[str, Any]:
    """Return a start entry whose data lists all earlier datasets once, instead of nested starts."""
    entries = list_datasets(lineage["data"])
    by_hash = {entry.get("manifest_sha256", entry["name"]): entry for entry in entries}
    data = {"datasets": list(by_hash.values())}
    return {**lineage, "positions": count_positions(lineage), "data": data}
