"""Unfinished work that a stranger left in a folder (matches, fine-tunes, ingests) is refused in one
line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import DatasetError, Stopped
from pipeline.finetune.state import STATE, FinetuneError, read_state
from pipeline.ingest.chunk import IngestConfig
from pipeline.ingest.job import ingest
from pipeline.matches.files import JOURNAL, MatchFilesError, read_games
from tests.pipeline import datasets
from tests.pipeline.dataset.files.test_shard_files import NO_JSON

GAME: dict[str, Any] = {
    "game": 0,
    "fen": "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1",
    "book": ["e2e4"],
    "moves": ["e7e5"],
    "scores": ["0.1"],
    "clocks": None,
    "result": "1-0",
    "ending": "adjudication",
    "forfeit": None,
    "detail": "",
}
GAMES: list[dict[str, Any]] = [
    {"game": "0"},
    {"game": -1},
    {"game": True},
    {"fen": "nothing"},
    {"fen": 7},
    {"book": "e2e4"},
    {"book": ["e2e5"]},
    {"moves": ["xx"]},
    {"moves": [7]},
    {"scores": []},
    {"scores": [0.1]},
    {"clocks": [1.0, 2.0]},
    {"clocks": {}},
    {"result": "*"},
    {"more": 1},
]


def test_a_game_of_a_match(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text(json.dumps(GAME) + "\n")
    assert read_games(tmp_path)[0].points == 1.0
    for change in GAMES:
        (tmp_path / JOURNAL).write_text(json.dumps(GAME | change) + "\n")
        with pytest.raises(MatchFilesError, match=rf"{JOURNAL}, line 1 is not a game"):
            read_games(tmp_path)
    for data in NO_JSON.values():
        (tmp_path / JOURNAL).write_bytes(data.replace(b"\n", b" ") + b"\n")
        with pytest.raises(MatchFilesError, match=JOURNAL):
            read_games(tmp_path)


STATE_OF: dict[str, Any] = {
    "format_version": 2,
    "seconds": 1.5,
    "generations": [{"number": 0, "stages": {"eval": {}}, "seconds": {"eval": 1.0}}],
}


@pytest.mark.parametrize(
    "change",
    [
        {"format_version": 1},
        {"seconds": -1.0},
        {"seconds": "x"},
        {"generations": {}},
        {"generations": [7]},
        {"generations": [{"number": 1}]},
        {"generations": [STATE_OF["generations"][0] | {"number": 1}]},
        {"generations": [STATE_OF["generations"][0] | {"stages": {"eval": 7}}]},
        {"generations": [STATE_OF["generations"][0] | {"verdict": {}}]},
        {"generations": [STATE_OF["generations"][0] | {"verdict": {"promoted": 1}}]},
    ],
)
def test_the_state_of_a_fine_tuning(change: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / STATE).write_text(json.dumps(STATE_OF))
    assert len(read_state(tmp_path).generations) == 1
    (tmp_path / STATE).write_text(json.dumps(STATE_OF | change))
    with pytest.raises(FinetuneError, match=STATE) as said:
        read_state(tmp_path)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("name", NO_JSON)
def test_a_state_that_is_no_json(name: str, tmp_path: Path) -> None:
    (tmp_path / STATE).write_bytes(NO_JSON[name])
    with pytest.raises(FinetuneError, match=STATE):
        read_state(tmp_path)


Spoil = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda note: note | {"rows": -1},
        lambda note: note | {"rows": "many"},
        lambda note: note | {"files": 7},
        lambda note: note | {"files": [note["files"][0] | {"name": "../x"}]},
        lambda note: note | {"status": []},
        lambda note: {},
        lambda note: [],
    ],
)
def test_the_notes_of_an_unfinished_ingest(
    spoil: Spoil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise Stopped("before the manifest")

    dump = datasets.dump(tmp_path / "a.pgn", 3)
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.ingest.job.build_manifest", stopped)
        with pytest.raises(Stopped):
            ingest([str(dump)], tmp_path / "out", IngestConfig(chunk_mib=1), workers=1)
    note = tmp_path / "out" / ".building" / "parts" / "00000.json"
    whole = json.loads(note.read_bytes())
    note.write_text(json.dumps(spoil(whole)))
    with pytest.raises(DatasetError, match=r"00000\.json|delete"):
        ingest([str(dump)], tmp_path / "out", IngestConfig(chunk_mib=1), workers=1)
    assert not (tmp_path / "out" / "manifest.json").exists()
