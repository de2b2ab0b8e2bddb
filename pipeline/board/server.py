"""The web server of the page: requests hold the whole game, so tabs share nothing and a restart loses nothing.

Every request to compute is JSON by POST; answers are JSON, errors `{"error": text}`. A review streams a JSON object a line.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import chess
import chess.svg
import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from engine.errors import UserError
from model.inference.player import Player
from pipeline.board.ask import ask
from pipeline.board.game import GameSoFar, describe, name_piece, write_pgn
from pipeline.board.local_server import HOST, Guard, listen
from pipeline.board.networks import Networks
from pipeline.board.play import PlayRequest, answer
from pipeline.board.review import ReviewRequest, review
from pipeline.storage.preflight import is_installed

STATIC = Path(__file__).with_name("static")
MOST_BODY = 1 << 20
"""Bytes of a request's body; the longest PGN."""
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
}


def make_app(networks: Networks) -> Guard:
    """Return the application, behind the guard that refuses other sites' requests."""

    def compute(work: Callable[[Any, Player], Any]) -> Callable[[Any], Any]:
        def run(body: Any) -> Any:
            player = networks.load(body.network)
            with networks.lock:
                return work(body, player)

        return run

    def offer(_: Request) -> Response:
        found = {"networks": list(networks.places()), "ratings": networks.ratings()}
        return JSONResponse({**found, "stockfish": is_installed("stockfish")})

    routes = [
        Route("/", lambda _: FileResponse(STATIC / "index.html")),
        Route("/pieces/{name}.svg", _draw_piece),
        Route("/api/networks", offer),
        _post("/api/state", GameSoFar, describe),
        _post("/api/play", PlayRequest, compute(answer)),
        _post("/api/ask", GameSoFar, compute(ask)),
        _post("/api/save", GameSoFar, lambda body: {"pgn": write_pgn(body.replay(), body.tags)}),
        _post("/api/review", ReviewRequest, lambda body: _stream_review(body, networks)),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    handlers: Any = {UserError: _refuse, HTTPException: _refuse, Exception: _fail}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), headers=HEADERS)


def serve(networks: Networks, port: int) -> None:
    """Serve the page on 127.0.0.1 until a signal arrives. Raises UserError for a port that is in use.

    The first network searches before the page opens: kernels compile then, and not during a game.
    """
    with listen(port, "--port N") as listener:
        networks.load(next(iter(networks.places()))).analyse(chess.Board(), 1)
        app = make_app(networks)
        config = uvicorn.Config(app, log_level="warning", proxy_headers=False, timeout_graceful_shutdown=2)
        print(f"The board is on http://{HOST}:{listener.getsockname()[1]} (Ctrl-C ends it)", flush=True)  # noqa: T201
        with suppress(KeyboardInterrupt):  # Ctrl-C, which uvicorn passes on after it has ended
            uvicorn.Server(config).run([listener])


def _post(path: str, form: type[Any], work: Callable[[Any], Any]) -> Route:
    """Return a route that reads JSON of a form and answers with the work's result, which a thread computes."""

    async def handle(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise HTTPException(415, "requests must be application/json")
        data = await _read(request)
        try:
            body = form.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            raise HTTPException(400, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        result = await run_in_threadpool(work, body)
        return result if isinstance(result, Response) else JSONResponse(result)

    return Route(path, handle, methods=["POST"])


async def _read(request: Request) -> bytes:
    """Return a request's body; HTTPException 413 as soon as it is longer than MOST_BODY."""
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MOST_BODY:
            raise HTTPException(413, f"the request is longer than {MOST_BODY >> 20} MiB")
    return data


def _stream_review(body: ReviewRequest, networks: Networks) -> Response:
    """Return the parts of a review, a JSON object a line; errors in the game are raised before the stream begins."""
    steps = review(body, networks.load(body.network))
    header = next(steps)

    def lines() -> Iterator[str]:
        part: dict[str, Any] | None = header
        while part is not None:
            yield json.dumps(part, allow_nan=False) + "\n"
            try:
                with networks.lock:  # released after each move, so that other tabs get their answers
                    part = next(steps, None)
            except UserError as error:
                part = {"error": str(error)}

    return StreamingResponse(lines(), media_type="application/x-ndjson")


def _refuse(_: Request, error: Exception) -> Response:
    """Answer with an error's text."""
    status, text = (error.status_code, error.detail) if isinstance(error, HTTPException) else (400, str(error))
    return JSONResponse({"error": text}, status)


def _fail(_: Request, error: Exception) -> Response:
    """Answer an error of this program, which the terminal shows whole."""
    return JSONResponse({"error": f"an internal error, {type(error).__name__}: the terminal shows it"}, 500)


def _draw_piece(request: Request) -> Response:
    """Return python-chess's drawing of a piece such as `white pawn`."""
    for piece in map(chess.Piece.from_symbol, "PNBRQKpnbrqk"):
        if name_piece(piece) == request.path_params["name"]:
            return Response(
                chess.svg.piece(piece), media_type="image/svg+xml", headers={"Cache-Control": "max-age=86400"}
            )
    raise HTTPException(404, "there is no such piece")
