// The user interface of player.js: a board, and one game against the network, without a server.

const HEADER = JSON.parse(document.getElementById("header").textContent);
const NETWORK = readNetwork(HEADER, document.getElementById("weights").textContent);
const START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1";
const NAMES = ["pawn", "knight", "bishop", "rook", "queen", "king"];
const element = (id) => document.getElementById(id);
let game, picked = null;

const position = () => game.positions.at(-1);
const positionKey = ({board, black, castling, ep}) => [board, black, castling, ep].join();

function newGame() {
  const black = element("side").value === "black";
  game = {positions: [readFen(START)], past: [], names: [], black};
  picked = null;
  render();
  playNetworkMove();
}

function play(move) {
  const {black} = position(), flip = black ? 56 : 0;
  game.past.push([move.from ^ flip, move.to ^ flip]);
  game.names.push(uci(move, black));
  game.positions.push(push(position(), move));
  picked = null;
  render();
  playNetworkMove();
}

function describeResult() {
  const now = position(), pieces = [...now.board].filter((piece) => piece && piece < 11);
  const winner = now.black ? "White" : "Black";
  if (!legalMoves(now).length) {
    return isInCheck(now.board) ? `Checkmate: ${winner} wins.` : "Stalemate: a draw.";
  }
  if (now.halfmove >= 100) return "A draw: fifty moves without a capture or a pawn move.";
  const times = game.positions.filter((one) => positionKey(one) === positionKey(now)).length;
  if (times > 2) return "A draw by repetition.";
  const bare = pieces.length === 0 || pieces.length === 1 && [1, 2].includes(pieceType(pieces[0]));
  return bare ? "A draw: neither side can win." : "";
}

function playNetworkMove() {
  if (describeResult() || position().black === game.black) return;
  const asked = game;
  setTimeout(() => {  // after the board has been drawn
    if (asked !== game) return;
    const likely = policy(NETWORK, position(), game.past, Number(element("rating").value));
    let left = element("likeliest").checked ? 0 : Math.random();
    play((likely.find(({probability}) => (left -= probability) < 0) ?? likely[0]).move);
  }, 50);
}

function selectSquare(square) {
  if (describeResult() || position().black !== game.black) return;
  const moves = legalMoves(position()).filter(({from, to}) => from === picked && to === square);
  const wanted = Number(element("promotion").value);
  if (moves.length) return play(moves.find(({promotion}) => promotion === wanted) ?? moves[0]);
  picked = position().board[square] % 2 ? square : null;
  render();
}

function render() {
  const now = position(), turned = now.black !== game.black;  // the board is in the mover's view
  const last = game.past.at(-1) ?? [];
  const aims = legalMoves(now).filter((move) => move.from === picked);
  const focused = document.activeElement?.dataset.square;
  element("board").replaceChildren(...Array.from({length: 64}, (_, place) => {
    const at = place ^ (turned ? 56 : 0) ^ (game.black ? 7 : 0), piece = now.board[at];
    const button = document.createElement("button");
    const isWhite = piece && Boolean(side(piece)) === now.black;
    const name = nameSquare(at, now.black);
    button.textContent = piece ? "♟♞♝♜♛♚"[pieceType(piece)] + "\uFE0E" : "";
    const what = piece ? `, ${isWhite ? "white" : "black"} ${NAMES[pieceType(piece)]}` : "";
    button.ariaLabel = name + what;
    button.className = [(place + (place >> 3)) % 2 ? "dark" : "light", isWhite ? "white" : "black",
      last.includes(at ^ (now.black ? 56 : 0)) ? "last" : "", at === picked ? "picked" : "",
      aims.some(({to}) => to === at) ? "target" : ""].join(" ");
    button.dataset.square = name;
    button.onclick = () => selectSquare(at);
    return button;
  }));
  if (focused) element("board").querySelector(`[data-square=${focused}]`).focus();
  const turn = now.black === game.black ? "Your move." : "The network thinks.";
  const status = isInCheck(now.board) ? `Check. ${turn}` : turn;
  element("status").textContent = describeResult() || status;
  element("moves").textContent = game.names.join(" ");
}

element("name").textContent = HEADER.name;
element("rating").value = HEADER.rating;
element("new").onclick = newGame;
newGame();
