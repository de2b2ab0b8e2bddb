"""Compare the vectorized scans over lines with regular expressions."""

import random
import re

import numpy as np

from pipeline.pgn import tags
from pipeline.pgn import text as lines


def test_scans_over_lines_find_the_same_bytes_as_regular_expressions() -> None:
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
            found = lines.find_line_stop(text, at, end, lines.SEMICOLON)
            assert found == (at + stop.start() if stop else end)
            line = re.search(rb"\r\n|\r|\n", part)
            assert lines.skip_line(text, at, end) == (at + line.end() if line else end)
            braces = re.findall(rb"[{}]", part)
            assert lines.find_last_brace(text, at, end) == (ord(braces[-1]) if braces else 0)
            tag = re.match(rb"\[[^%\]\r\n][^\]\r\n]*\](?=[\r\n]|\Z)|\[\](?=[\r\n]|\Z)", part)
            assert tags.find_plain_close(text, at, end) == (at + tag.end() - 1 if tag else -1)
