"""The board's web server. Each request holds the whole game, so the server stores no games.

Requests that compute something are sent as JSON by POST. They are answered in JSON, and an error is
`{"error": text}`. Reviews and downloads are streamed, one JSON object per line.
"""

import json
import logging
from asyncio import Semaphore
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import Any

import chess
import chess.engine
import chess.svg
import uvicorn
from anyio import CancelScope
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Send

from engine.errors import UserError
from engine.progress import Stop, never
from model.inference.player import Player
from pipeline.board.ask import PlayRequest, answer, ask, consider_draw, estimate_score
from pipeline.board.game import GameSoFar, describe_position, name_piece, write_pgn
from pipeline.board.game_reviews import GamesRequest, review_games
from pipeline.board.lichess import MAX_PGN_BYTES, LichessRequest, download
from pipeline.board.local_server import HOST, Guard, listen
from pipeline.board.networks import Networks, read_people
from pipeline.board.review import ReviewRequest, review
from pipeline.storage.preflight import is_installed

STATIC = Path(__file__).with_name("static")
MAX_REVIEWS = 2
"""Maximum number of concurrent reviews, each with its own Stockfish; others wait."""
MAX_BODY_BYTES = 1 << 20
"""Maximum size of a request's body, and so of the PGN of one game."""
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; form-action 'none'; "
    "base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
}


def make_app(networks: Networks, stop: Stop = never) -> Guard:
    """Return the application behind its guard; reviews end once `stop` returns True."""
    slots = Semaphore(MAX_REVIEWS)

    def with_player(handle: Callable[[Any, Player], Any]) -> Callable[[Any], Any]:
        def load_and_handle(body: Any) -> Any:
            player = networks.load(body.network)
            with networks.turns:
                return handle(body, player)

        return load_and_handle

    def play_move(body: PlayRequest, player: Player) -> dict[str, Any]:
        return answer(body, player, read_people(networks.find(body.network)))

    def list_networks(_: Request) -> Response:
        listed = {"networks": networks.describe(), "stockfish": is_installed("stockfish")}
        return JSONResponse(listed)

    def score_position(body: GameSoFar, player: Player) -> dict[str, Any]:
        return {"score": estimate_score(body.board(), player)}

    def review_one(body: ReviewRequest) -> Response:
        people = read_people(networks.find(body.network))
        steps = review(body, networks.load(body.network), networks.turns, people)
        return _stream(steps, slots, stop)

    def review_many(body: GamesRequest) -> Response:
        steps = review_games(body, networks.find(body.network), stop=stop)
        return _stream(steps, slots, stop)

    def fetch_games(body: LichessRequest) -> Response:
        return _stream(download(body), slots, stop)

    routes = [
        Route("/", lambda _: FileResponse(STATIC / "index.html")),
        Route("/pieces/{name}.svg", _draw_piece),
        Route("/api/networks", list_networks),
        _post("/api/state", GameSoFar, describe_position),
        _post("/api/play", PlayRequest, with_player(play_move)),
        _post("/api/ask", GameSoFar, with_player(ask)),
        _post("/api/value", GameSoFar, with_player(score_position)),
        _post("/api/draw", GameSoFar, with_player(consider_draw)),
        _post("/api/save", GameSoFar, lambda body: {"pgn": write_pgn(body)}),
        _post("/api/review", ReviewRequest, review_one),
        _post("/api/games", GamesRequest, review_many, MAX_PGN_BYTES + MAX_BODY_BYTES),
        _post("/api/lichess", LichessRequest, fetch_games),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    # after ClientDisconnect the client no longer reads the answer
    refused = dict.fromkeys((UserError, HTTPException, ClientDisconnect), _refuse)
    handlers: Any = {**refused, Exception: _fail}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), headers=HEADERS)


def serve(networks: Networks, port: int, host: str = HOST) -> None:
    """Serve the page until a signal arrives; raise UserError for a bad port or host."""
    with listen(port, "--port N", host) as listener:
        _warm_up(networks)
        app = make_app(networks, lambda: server.should_exit)
        config = uvicorn.Config(
            app, log_level="warning", proxy_headers=False, timeout_graceful_shutdown=2
        )
        address = f"http://{HOST}:{listener.getsockname()[1]}"
        print(f"The board is on {address} (Ctrl-C stops it)", flush=True)  # noqa: T201
        server = _Server(config)
        server.run([listener])


def _warm_up(networks: Networks) -> None:
    """Search with the first network that loads, so that kernels do not compile later.

    Raises UserError if a network that the user named cannot be loaded.
    """
    folders = networks.list_folders()
    for name, folder in folders.items():
        try:
            networks.load(name).analyse(chess.Board(), 1)
            return
        except UserError:
            if folder in networks.named or name == [*folders][-1]:
                raise


class _Server(uvicorn.Server):
    """A server that logs nothing when it is stopped."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop without log lines about the requests that it cuts short."""
        logging.getLogger("uvicorn.error").disabled = True
        super().handle_exit(sig, frame)


def _post(
    path: str, form: type[Any], work: Callable[[Any], Any], limit: int = MAX_BODY_BYTES
) -> Route:
    """Return a route that reads a JSON form and answers with the result of `work`."""

    async def handle(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise HTTPException(415, "requests must be application/json")
        data = await _read(request, limit)
        try:
            body = form.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            text = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise HTTPException(400, text) from error
        result = await run_in_threadpool(work, body)
        return result if isinstance(result, Response) else JSONResponse(result)

    return Route(path, handle, methods=["POST"])


async def _read(request: Request, limit: int) -> bytes:
    """Return a request's body. Raises HTTPException 413 if it exceeds the limit in bytes."""
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > limit:
            raise HTTPException(413, f"the request is longer than {limit >> 20} MiB")
    return data


class _Stream(StreamingResponse):
    """A streaming response that closes its content as soon as the client leaves."""

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            await super().stream_response(send)


def _stream(steps: Generator[dict[str, Any]], slots: Semaphore, stop: Stop) -> Response:
    """Stream a review or a download, one JSON object per line; raise errors of the first object.

    When the client leaves, `steps` is closed, and with it Stockfish and other processes.
    """
    stepping = Lock()
    header = next(steps)

    def advance() -> dict[str, Any] | None:
        try:
            with stepping:
                return next(steps, None)
        except UserError as error:
            return {"error": str(error)}
        except chess.engine.EngineError as error:
            return {"error": f"Stockfish failed: {error}"}

    def close() -> None:
        with stepping:  # wait for a step that is still running in its thread
            steps.close()

    async def lines() -> AsyncGenerator[str, None]:
        try:
            yield _line(header)
            async with slots:
                while not stop() and (part := await run_in_threadpool(advance)):
                    yield _line(part)
            if stop():
                yield _line({"error": "the board was stopped"})
        finally:
            with CancelScope(shield=True):
                await run_in_threadpool(close)

    return _Stream(lines(), media_type="application/x-ndjson")


def _line(part: dict[str, Any]) -> str:
    return json.dumps(part, allow_nan=False) + "\n"


def _refuse(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code)
    return JSONResponse({"error": str(error)}, 400)


def _fail(_: Request, error: Exception) -> Response:
    """Answer an internal error; the terminal shows its traceback."""
    text = f"internal error ({type(error).__name__}): see the terminal"
    return JSONResponse({"error": text}, 500)


def _draw_piece(request: Request) -> Response:
    """Return python-chess's drawing of a piece such as `white pawn`."""
    for piece in map(chess.Piece.from_symbol, "PNBRQKpnbrqk"):
        if name_piece(piece) == request.path_params["name"]:
            lasting = {"Cache-Control": "max-age=86400"}
            return Response(chess.svg.piece(piece), media_type="image/svg+xml", headers=lasting)
    raise HTTPException(404, "there is no such piece")
