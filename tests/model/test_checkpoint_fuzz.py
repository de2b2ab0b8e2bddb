"""Checkpoints by strangers: whatever a card or a tensor file's header holds, it loads or is refused
in one line."""

import copy
import hashlib
import json
import random
import resource
import struct
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UserError
from model.card import CARD_FILE
from model.checkpoint import load, read_card
from tests.model.test_checkpoint import make

VALUES: list[Any] = [
    *(None, True, 0, -1, 1e308, 2**31, 2**62, 2**63, 7, 128, 129, 4096, 4097),
    *("", "x", "../x", "\0", "x" * 5000, "marro77", "marro13+last8+attacks", "planes18+last8"),
    *("factored", "F64", "I8", "U64", [], {}, [[]], [0] * 50),
]
LARGEST = 200 << 20
"""Bytes by which a process may grow while it reads one of these; the network has 20 kB."""


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Name every place of a JSON value."""
    children: Any = ()
    if isinstance(value, dict | list):
        children = value.items() if isinstance(value, dict) else enumerate(value)
    return [path, *(deeper for key, child in children for deeper in paths(child, (*path, key)))]


def mutate(value: Any, chance: random.Random) -> Any:
    """Replace, remove or rename some places of a JSON value."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        *way, last = chance.choice([path for path in paths(value) if path])
        place = value
        for key in way:
            place = place[key]
        action = chance.randrange(4)
        if action == 0:
            del place[last]
        elif action == 1 and isinstance(place, dict):
            place[chance.choice(("", "name", "x" * 300, str(last) + " "))] = place.pop(last)
        else:
            place[last] = copy.deepcopy(chance.choice(VALUES))
    return value


def spoil_text(text: bytes, chance: random.Random) -> bytes:
    """Change some bytes of a text."""
    data = bytearray(text)
    for _ in range(chance.choice((1, 2, 8))):
        at = chance.randrange(len(data))
        data[at : at + chance.randrange(3)] = bytes(
            chance.choices(b'{}[]",:0159eE-.\\nu\xff\0 ', k=chance.randrange(4))
        )
    return bytes(data)


def refusal(directory: Path) -> str:
    """Return why a checkpoint is refused, "" where it loads; other errors than UserErrors fail the
    test."""
    try:
        read_card(directory)
        load(directory)
    except UserError as error:
        return str(error)
    return ""


def check_many(directory: Path, spoil: Any, seeds: range) -> None:
    make(directory)
    whole = {path.name: path.read_bytes() for path in directory.iterdir()}
    before, count = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    for seed in seeds:
        spoil(directory, random.Random(seed))
        reason = refusal(directory)
        assert "\n" not in reason, reason
        assert len(reason) < 1000, reason
        count += bool(reason)
        for name, data in whole.items():
            (directory / name).write_bytes(data)
        assert sorted(path.name for path in directory.iterdir()) == sorted(whole), (
            f"seed {seed} made files"
        )
    assert count > len(seeds) // 3
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < LARGEST


def spoil_card(directory: Path, chance: random.Random) -> None:
    text = (directory / CARD_FILE).read_bytes()
    if chance.random() < 0.25:
        (directory / CARD_FILE).write_bytes(spoil_text(text, chance))
    else:
        (directory / CARD_FILE).write_text(json.dumps(mutate(json.loads(text), chance)))


def spoil_header(directory: Path, chance: random.Random) -> None:
    """Spoil the header of the tensor file, and make the card agree with it."""
    path = next(directory.glob("weights-*.safetensors"))
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, tensors = data[8 : 8 + length], data[8 + length :]
    spoilt_json = json.dumps(mutate(json.loads(header), chance)).encode()
    header = chance.choice((spoilt_json, spoil_text(header, chance)))
    length = chance.choice(
        (len(header), len(header), len(header), 0, 1, len(data), 10**8, 2**62, 2**64 - 1)
    )
    spoilt = (
        struct.pack("<Q", length) + header + tensors[: chance.choice((None, None, None, 0, 5, -1))]
    )
    path.write_bytes(spoilt)
    card = json.loads((directory / CARD_FILE).read_text())
    card["files"]["weights"] |= {"bytes": len(spoilt), "sha256": hashlib.sha256(spoilt).hexdigest()}
    (directory / CARD_FILE).write_text(json.dumps(card))


@pytest.mark.parametrize(
    "seeds", [range(60), pytest.param(range(60, 1500), marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize("spoil", [spoil_card, spoil_header])
def test_a_damaged_checkpoint_loads_or_is_refused_in_one_line(
    tmp_path: Path, spoil: Any, seeds: range
) -> None:
    check_many(tmp_path / "net", spoil, seeds)


def test_a_tensor_file_with_flipped_bits_is_not_loaded(tmp_path: Path) -> None:
    make(tmp_path)
    path = next(tmp_path.glob("weights-*.safetensors"))
    for seed in range(3):
        chance, data = random.Random(seed), bytearray(path.read_bytes())
        for at in chance.sample(range(len(data)), 8):
            data[at] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        assert "does not match its hash in the card" in refusal(tmp_path)
