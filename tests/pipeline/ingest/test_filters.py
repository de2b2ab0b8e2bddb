"""Filters keep the games and moves that they should by python-chess, and count the others."""

import io
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import numpy as np
import pytest

from pipeline.dataset.hashing import splitmix64
from pipeline.errors import ConfigError, DatasetError
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.filters import GAME_FILTERS, ROW_FILTERS, Filters, list_active
from pipeline.ingest.job import ingest
from tests.pipeline import datasets

Headers = Mapping[str, str]
CONFIG = IngestConfig(test_share=0.0, val_share=0.0)
EVENTS = ("Rated Blitz game", "Casual Rapid game", "rated Bullet tournament", "WCh 1972", "")
TIME_CONTROLS = (
    "15+0", "29+0", "30+0", "60+1", "179+0", "180+0", "120+9", "479+0", "480+0", "1499+0", "1500+0",
    "0+1", "-", "?", "40/9000", "", "10|5", "15 min", "5 3", "90+0.5", "1 in 5 days", "*180",
    "-180", "99999999999",
)  # fmt: skip
TERMINATIONS = ("Normal", "Time forfeit", "time forfeit", "Abandoned", "x won by resignation", "")
DATES = (
    "2013.01.31", "2020.02.29", "2020.03.01", "2024.12.31", "2020.??.??", "????.??.??",
    "2020.02.3", "2020.1?.01", "",
)  # fmt: skip
TITLES = ("", "", "GM", "IM", "BOT", "CM", "gm")
PLAYERS = ("ann", "bob", "lichess AI level 3", "")


def write_game(seed: int) -> str:
    """Return a random game with random tags, valid and invalid ones."""
    rng = random.Random(seed)
    head, _, moves = datasets.random_game(seed, 12 + seed % 9).partition("\n\n")
    if rng.random() < 0.3:
        moves = moves.replace("[%eval", "[%x")
    tags = {
        "Event": rng.choice(EVENTS), "White": rng.choice(PLAYERS),
        "Black": rng.choice(PLAYERS), "WhiteTitle": rng.choice(TITLES),
        "BlackTitle": rng.choice(TITLES), "TimeControl": rng.choice(TIME_CONTROLS),
        "Termination": rng.choice(TERMINATIONS),
        rng.choice(("UTCDate", "Date")): rng.choice(DATES),
    }  # fmt: skip
    kept = [line for line in head.split("\n") if line.split('"')[0].strip("[ ") not in tags]
    if rng.random() < 0.1:
        kept = [line for line in kept if "WhiteElo" not in line]
    lines = [
        f'[{name} "{value}"]' for name, value in tags.items() if value or name == "Event"
    ] + kept
    return "\n".join(lines) + f"\n\n{moves}"


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filters") / "games.pgn"
    path.write_text("".join(write_game(seed) for seed in range(240)))
    return path


@pytest.fixture(scope="module")
def games(dump: Path) -> list[chess.pgn.Game]:
    text = io.StringIO(dump.read_text())
    return list(iter(lambda: chess.pgn.read_game(text), None))


def read_elos(tags: Headers) -> tuple[int, int]:
    return tuple(int(tags.get(name, 0)) for name in ("WhiteElo", "BlackElo"))  # type: ignore[return-value]


def classify_speed(tags: Headers) -> str:
    """Return Lichess's class of a time control, as scalachess's Speed does."""
    base, _, increment = tags.get("TimeControl", "").partition("+")
    if base == "-":
        return "correspondence"
    if not re.fullmatch(r"\d{1,5}(\+\d{1,3})?", tags.get("TimeControl", "")):
        return "unknown"
    seconds = int(base) + 40 * int(increment or 0)
    limits = {"ultrabullet": 29, "bullet": 179, "blitz": 479, "rapid": 1499}
    return next((name for name, limit in limits.items() if seconds <= limit), "classical")


def has_bot(tags: Headers) -> bool:
    has_name = any(tags.get(side, "").startswith("lichess AI") for side in ("White", "Black"))
    return "BOT" in (tags.get("WhiteTitle"), tags.get("BlackTitle")) or has_name


def read_date(tags: Headers) -> str:
    text = tags.get("UTCDate") or tags.get("Date", "")
    return text.replace(".", "-") if len(text) == 10 and "?" not in text else ""


FAST, SLOW = ("ultrabullet", "bullet"), ("blitz", "rapid", "classical", "correspondence")
FILTERS: dict[str, tuple[dict[str, Any], Callable[[Headers], bool]]] = {
    # reason (with a number for a second filter): settings, and whether they keep a game
    "elo": ({"min_elo": 1200}, lambda tags: min(read_elos(tags)) >= 1200),
    "elo 2": ({"max_elo": 2000}, lambda tags: max(read_elos(tags)) <= 2000),
    "casual": ({"rated_only": True}, lambda tags: tags["Event"].lower().startswith("rated")),
    "bot": ({"exclude_bots": True}, lambda tags: not has_bot(tags)),
    "speed": ({"speeds": FAST}, lambda tags: classify_speed(tags) in FAST),
    "speed 2": ({"speeds": SLOW}, lambda tags: classify_speed(tags) in SLOW),
    "termination": (
        {"terminations": ("normal", "time forfeit")},
        lambda tags: tags.get("Termination", "").lower() in ("normal", "time forfeit"),
    ),
    "date": (
        {"since": "2020-02-29", "until": "2020-12-31"},
        lambda tags: "2020-02-29" <= read_date(tags) <= "2020-12-31",
    ),
    "date 2": ({"until": "2020-12-31"}, lambda tags: "" < read_date(tags) <= "2020-12-31"),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_keeps_the_games_with_the_wanted_tags(
    name: str, dump: Path, games: list[chess.pgn.Game], tmp_path: Path
) -> None:
    settings, is_kept = FILTERS[name]
    reason, kept = f"filter: {name.split()[0]}", [is_kept(game.headers) for game in games]
    assert 10 < sum(kept) < 230
    manifest = ingest([str(dump)], tmp_path / "out", replace(CONFIG, **settings), workers=1)
    dropped = [game["dropped"] for game in datasets.games(tmp_path / "out")]
    assert dropped == [None if is_used else reason for is_used in kept]
    counts = {"read": 240, "used": sum(kept), "dropped": {reason: 240 - sum(kept)}}
    assert manifest["games"] == counts
    lengths = [len(list(game.mainline_moves())) for game in games]
    assert manifest["positions"]["total"] == sum(itertools.compress(lengths, kept))


def test_a_game_that_several_filters_drop_is_counted_once(dump: Path, tmp_path: Path) -> None:
    config = replace(
        CONFIG, rated_only=True, exclude_bots=True, min_elo=900, sample=0.9, evals_only=True
    )
    counts = ingest([str(dump)], tmp_path / "out", config, workers=1)["games"]
    assert counts["read"] == counts["used"] + sum(counts["dropped"].values()) == 240
    assert set(counts["dropped"]) == {
        "filter: elo", "filter: casual", "filter: bot", "filter: sample", "filter: no evals",
    }  # fmt: skip


Rows = dict[tuple[int, int], dict[str, Any]]
"""Rows by game and ply."""


@pytest.fixture(scope="module")
def all_rows(dump: Path, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Return the rows without a filter."""
    return ingest_rows(dump, tmp_path_factory.mktemp("all"))[0]


def ingest_rows(dump: Path, out: Path, **settings: Any) -> tuple[Rows, dict[str, Any]]:
    manifest = ingest([str(dump)], out, replace(CONFIG, **settings), workers=1)
    return {(row["game"], row["ply"]): row for row in datasets.table(out).to_pylist()}, manifest


def test_rows_are_kept_by_ply_clock_and_eval(dump: Path, all_rows: Rows, tmp_path: Path) -> None:
    rules: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]] = {
        "opening": ({"skip_plies": 6}, lambda row: row["ply"] >= 6),
        "clock": ({"min_clock": 200}, lambda row: row["clock"] is None or row["clock"] >= 200),
        "no eval": ({"evals_only": True}, lambda row: row["eval"] is not None),
    }
    for name, (settings, is_kept) in rules.items():
        rows, manifest = ingest_rows(dump, tmp_path / name, **settings)
        expected = {key: row for key, row in all_rows.items() if is_kept(row)}
        assert rows == expected
        lost: set[int] = set()  # games without any evaluation
        if name == "no eval":
            lost = {game for game, _ in all_rows} - {game for game, _ in expected}
        dropped = sum(not is_kept(row) and game not in lost for (game, _), row in all_rows.items())
        assert manifest["positions_dropped"] == {f"filter: {name}": dropped}
        assert manifest["games"]["dropped"] == ({"filter: no evals": len(lost)} if lost else {})
        assert manifest["positions"]["train"] == len(expected) > 500


def test_positions_per_game_are_limited_by_a_choice_that_depends_only_on_the_game(
    dump: Path, all_rows: Rows, tmp_path: Path
) -> None:
    rows, manifest = ingest_rows(dump, tmp_path / "three", positions_per_game=3)
    more, _ = ingest_rows(dump, tmp_path / "five", positions_per_game=5)
    lengths = Counter(game for game, _ in all_rows)
    assert Counter(game for game, _ in rows) == {
        game: min(3, count) for game, count in lengths.items()
    }
    assert set(rows) < set(more)
    assert all(all_rows[key] == row for key, row in rows.items())
    assert manifest["positions_dropped"] == {
        "filter: positions per game": len(all_rows) - len(rows)
    }
    plies = np.array([ply / lengths[game] for game, ply in rows])
    assert 0.35 < plies.mean() < 0.6, "positions are not from all parts of the game"
    text = dump.read_text()
    (tmp_path / "half.pgn").write_text(text[text.index("[Event", len(text) // 2) :])
    half, manifest = ingest_rows(tmp_path / "half.pgn", tmp_path / "half", positions_per_game=3)
    first = 240 - manifest["games"]["read"]
    assert {(first + game, ply) for game, ply in half} == {key for key in rows if key[0] >= first}


def test_a_sample_depends_on_the_moves_and_the_seed_and_contains_smaller_samples(
    tmp_path: Path,
) -> None:
    path = datasets.dump(tmp_path / "games.pgn", 400, plies=4)
    tenth, half = (
        {game["site"] for game in datasets.games(tmp_path / str(share)) if game["dropped"] is None}
        for share in (0.1, 0.5)
        if ingest([str(path)], tmp_path / str(share), replace(CONFIG, sample=share), workers=1)
    )
    assert 20 < len(tenth) < 65
    assert 160 < len(half) < 240
    assert tenth < half
    # other tags do not change the sample, but another seed does
    text = path.read_text().replace("[Site", '[Round "9"]\n[Site')
    (tmp_path / "other.pgn").write_bytes(text.rstrip().encode())
    for name, source, seed in (("other", "other.pgn", 0), ("seed", "games.pgn", 1)):
        config = replace(CONFIG, sample=0.1, chunk_mib=1, seed=seed)
        ingest([str(tmp_path / source)], tmp_path / name, config, workers=1)
        games = datasets.games(tmp_path / name)
        kept = {game["site"] for game in games if game["dropped"] is None}
        assert (kept == tenth) == (name == "other")


def test_filters_that_drop_everything_are_named(dump: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"240 games read \(filter: date: 240\)"):
        ingest([str(dump)], tmp_path / "a", replace(CONFIG, since="2030-01-01"), workers=1)
    with pytest.raises(DatasetError, match=r"240 games read \(filter: opening: \d+\)"):
        ingest([str(dump)], tmp_path / "b", replace(CONFIG, skip_plies=400), workers=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_elo": 9, "max_elo": 8}, "max_elo 8 is below min_elo 9"),
        ({"speeds": ("fast",)}, "speeds: 'fast' is not one of ultrabullet, "),
        ({"since": "2024"}, "since must be a day like"),
        ({"since": "2024-02-30"}, "since must be a day like"),
        ({"since": "2024-02-02", "until": "2024-02-01"}, "until 2024-02-01 is before since"),
        ({"test_share": 0.6, "val_share": 0.5}, "the sum of test_share and val_share"),
    ],
)
def test_invalid_filters_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        IngestConfig(**settings)


def test_splitmix64_gives_the_published_numbers() -> None:
    # the first outputs of Vigna's splitmix64.c with the seed 1234567, from Rosetta Code
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    found = [int(splitmix64(np.array([1234567], np.uint64), step)[0]) for step in range(3)]
    assert found == published


def test_every_setting_has_a_row_in_a_table_of_filters() -> None:
    rows = (*GAME_FILTERS, *ROW_FILTERS)
    assert {row.setting for row in rows} == {field.name for field in fields(Filters)}
    assert list_active(rows, Filters()) == list_active(rows, Filters(speeds=[])) == []  # type: ignore[arg-type]
