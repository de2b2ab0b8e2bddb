"""Download the games of a Lichess user through its public API (https://lichess.org/api).

The games are streamed. If Lichess answers 429 (too many requests), the next request is sent a
minute later, as its rules require. No other host is contacted, and redirects are not followed.
"""

import codecs
import time
from collections.abc import Generator
from typing import Annotated, Any

import urllib3
from pydantic import BaseModel, ConfigDict, Field

from pipeline.errors import FetchError

LICHESS_URL = "https://lichess.org"
MAX_GAMES, MAX_PGN_BYTES = 500, 8 << 20
"""Maximum number and size of a user's games, and of the games in a review."""
WAIT_SECONDS, MAX_WAITS = 60, 3
"""Wait after an answer 429, and maximum number of such waits."""
BLOCK_BYTES = 1 << 16
EXPORT_HINT = (
    "open https://lichess.org/@/{name}/download in a browser, choose games with clocks and"
    " openings, and drop the downloaded file on the board's page"
)


class LichessRequest(BaseModel):
    """Request for the newest games of a Lichess user."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{1,29}$")]
    games: Annotated[int, Field(ge=1, le=MAX_GAMES)] = 300


def download(request: LichessRequest, server: str = LICHESS_URL) -> Generator[dict[str, Any]]:
    """Yield parts of the PGN, and the seconds still to wait before the next request.

    Raises FetchError for an unknown user or, with the way to export by hand, a failed download.
    """
    by_hand = EXPORT_HINT.format(name=request.name)
    with urllib3.PoolManager(retries=False) as pool:
        for attempt in range(MAX_WAITS + 1):
            try:
                response = _send(pool, server, request)
            except urllib3.exceptions.HTTPError as error:
                raise FetchError(f"Lichess cannot be reached from here: {by_hand}") from error
            if response.status == 200:
                yield from _decode(response, by_hand)
                return
            response.close()
            if response.status == 404:
                raise FetchError(f"Lichess has no player {request.name!r}: check the name")
            if response.status != 429 or attempt == MAX_WAITS:
                raise FetchError(f"Lichess answered with status {response.status}: {by_hand}")
            for left in range(WAIT_SECONDS, 0, -1):
                yield {"wait": left}
                time.sleep(1)


def _send(pool: urllib3.PoolManager, server: str, request: LichessRequest) -> Any:
    fields = {"max": str(request.games), "rated": "true", "clocks": "true", "evals": "true"}
    return pool.request(
        "GET",
        f"{server}/api/games/user/{request.name}",
        fields=fields | {"opening": "true"},
        headers={"Accept": "application/x-chess-pgn", "User-Agent": "fianchetto"},
        timeout=urllib3.Timeout(connect=15, read=60),
        redirect=False,
        preload_content=False,
    )


def _decode(response: Any, by_hand: str) -> Generator[dict[str, Any]]:
    """Yield a response's text in parts; raise FetchError beyond MAX_PGN_BYTES."""
    decoder, size = codecs.getincrementaldecoder("utf-8")("replace"), 0
    try:
        for block in response.stream(BLOCK_BYTES):
            size += len(block)
            if size > MAX_PGN_BYTES:
                raise FetchError(f"the games exceed {MAX_PGN_BYTES >> 20} MiB: {by_hand}")
            yield {"pgn": decoder.decode(block)}
    except urllib3.exceptions.HTTPError as error:
        raise FetchError(
            f"the download from Lichess was interrupted: try again, or {by_hand}"
        ) from error
    finally:
        response.close()
