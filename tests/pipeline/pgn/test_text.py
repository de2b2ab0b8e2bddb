"""The scans over lines find what a search byte by byte finds, wherever the blocks begin."""

import random
import re

import numpy as np
import pytest

from pipeline.ingest.games import map_values
from pipeline.pgn import tags
from pipeline.pgn import text as lines


def test_tags_of_one_hash_keep_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    values = ["1-0", "0-1", "1-0", "*"]
    text = np.frombuffer("".join(values).encode(), dtype=np.uint8)
    ends = np.cumsum([len(value) for value in values])
    spans = np.stack([ends - [len(value) for value in values], ends], axis=1)
    for collides in (False, True):
        if collides:
            monkeypatch.setattr(tags, "hash_spans", lambda text, spans, out: out.fill(7))
        found = map_values(text, spans, str, np.object_)
        assert found.tolist() == values


def test_scans_over_lines_find_what_a_search_byte_by_byte_finds() -> None:
    rng = random.Random(1)
    for _ in range(300):
        density = rng.choice([0.0, 0.01, 0.2])
        data = bytes(
            rng.choice(b"\n\r;{}[]\xe2") if rng.random() < density else rng.choice(b"a1 .")
            for _ in range(rng.randrange(200))
        )
        text = np.frombuffer(data, dtype=np.uint8)
        for at in range(0, len(data) + 1, 7):
            end = rng.randint(at, len(data))
            part = data[at:end]
            stop = re.search(rb"[\n\r;]", part)
            found = lines.line_stop(text, at, end, lines.SEMICOLON)
            assert found == (at + stop.start() if stop else end)
            line = re.search(rb"\r\n|\r|\n", part)
            assert lines.line_end(text, at, end) == (at + line.end() if line else end)
            braces = re.findall(rb"[{}]", part)
            assert lines.last_brace(text, at, end) == (ord(braces[-1]) if braces else 0)
            tag = re.match(rb"\[[^%\]\r\n][^\]\r\n]*\](?=[\r\n]|\Z)|\[\](?=[\r\n]|\Z)", part)
            assert tags.plain_close(text, at, end) == (at + tag.end() - 1 if tag else -1)
