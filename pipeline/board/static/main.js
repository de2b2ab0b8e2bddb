// The page: tabs, board, move list, typed moves. Each of the three tabs has its own module.
import { Board } from "./board.js";
import { $, ask, button, change, dom, game, move, onPosition, position } from "./page.js";
import * as asking from "./ask.js";
import * as playing from "./play.js";
import * as reviewing from "./review.js";

const modes = { play: playing, ask: asking, review: reviewing };
const make = (word) => (game.mode === "play" ? playing.make(word) : move(word));
const board = new Board($("board"), $("promotion"), make);

onPosition(() => {
  const legal = game.mode !== "play" || playing.isMyTurn() ? position.legal : {};
  board.show({ ...position, legal, last: game.moves[game.at - 1], flipped: Boolean(game.flipped) });
  const moves = position.sans.map((san, index) => button(san, () => change({ at: index + 1 })));
  $("moves").replaceChildren(...moves);
  moves[game.at - 1]?.setAttribute("aria-current", "true");
  $("moves").scrollTop = (moves[game.at - 1]?.offsetTop ?? 0) - $("moves").offsetTop - 60;
  modes[game.mode].show(board);
});

// In Play, moves on the board belong to the game; in the other tabs, they explore variations.
function select(mode) {
  if (game.mode === "play") game.played = { start: game.start, moves: game.moves, at: game.at };
  for (const name in modes) {
    $(`tab-${name}`).setAttribute("aria-selected", String(name === mode));
    $(name).hidden = name !== mode;
  }
  change({ mode, ...(mode === "play" && game.played) });
}

$("typed").onsubmit = (event) => {
  event.preventDefault();
  make($("typed-move").value.trim());
  $("typed").reset();
};
$("go-back").onclick = () => change({ at: Math.max(game.at - 1, 0) });
$("go-on").onclick = () => change({ at: Math.min(game.at + 1, game.moves.length) });
$("flip").onclick = () => change({ flipped: !game.flipped });

const { networks, ratings, stockfish } = await ask("/api/networks");
$("network").replaceChildren(...networks.map((name) => dom("option", {}, name)));
if (networks.includes(game.network)) $("network").value = game.network;
// For an imitation, set the rating to that of the imitated player.
$("network").onchange = () => {
  const network = $("network").value;
  if (ratings[network]) Object.assign($("rating"), { value: ratings[network] }).oninput();
  change({ network });
};
$("with-stockfish").disabled = !stockfish;
for (const name in modes) {
  $(`tab-${name}`).onclick = () => select(name);
  modes[name].begin();
}
if (game.network !== $("network").value) $("network").onchange();
select(game.mode);
