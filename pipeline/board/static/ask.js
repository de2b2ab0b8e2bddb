// Ask tab: likely human moves at each rating in the current position, and the search result.
import { $, ask, button, chart, dom, game, move, newest, percent, position, say, shown, store, table } from "./page.js";

const COLUMNS = [1000, 1500, 2000, 2500];
let [board, found] = [null, null];

export function begin() {
  $("asked").value = game.asked ?? 1500;
  $("asked").oninput = drawArrows;
}

// Called after each change of the position.
export async function show(shownOn) {
  [board, found] = [shownOn, null];
  const version = newest();
  $("asked-about").hidden = Boolean(position.ending);
  if (position.ending) return say(`The game is over: ${position.ending}.`);
  say(`${position.turn === "w" ? "White" : "Black"} to move. Make moves on the board to explore.`);
  const answer = await ask("/api/ask", shown());
  if (!answer || version !== newest()) return;
  found = answer;
  drawArrows();
  showPeople();
  showSearch();
}

// Draw each likely move as an arrow; the width shows its probability.
function drawArrows() {
  $("asked-shown").textContent = game.asked = $("asked").value;
  store();
  const at = found?.ratings.indexOf(Number(game.asked));
  const arrows = found?.curves.map(({ uci, share }, index) => ({ uci, width: share[at], kind: `c${index}` })) ?? [];
  board?.draw(arrows.filter(({ width }) => width >= 0.03));
}

function showPeople() {
  const { ratings, curves } = found;
  const rows = curves.map(({ uci, san, share }, index) => {
    const circle = dom("circle", { cx: 4, cy: 4, r: 4, class: `c${index}` });
    const dot = dom("svg", { viewBox: "0 0 9 9", width: 12 }, circle);
    return [[dot, button(san, () => move(uci))], ...COLUMNS.map((rating) => percent(share[ratings.indexOf(rating)]))];
  });
  const lines = curves.map(({ san, share }, index) => ({ values: share, kind: `c${index}`, name: san }));
  const top = Math.max(0.1, ...curves.flatMap(({ share }) => share));
  const names = ratings.map((rating) => (rating % 400 === 0 ? String(rating) : ""));
  const drawn = chart("Probability of each move by rating", lines, top, names);
  $("shares").replaceChildren(table(["Move", ...COLUMNS.map((rating) => `at ${rating}`)], rows), drawn);
}

function showSearch() {
  $("score").textContent = found.text;
  const rows = found.lines.map(({ uci, sans: [san, ...more], visits, score }) => [
    button(san, () => move(uci)), score, visits, more.join(" "),
  ]);
  $("lines").replaceChildren(table(["Move", "score", "visits", "continuation"], rows));
  $("view").textContent = found.view;
  const drawn = found.planes.map(([title, path]) => {
    const plane = dom("svg", { viewBox: "0 0 8 8", "aria-hidden": "true" }, dom("path", { d: path }));
    return dom("figure", { class: path ? "" : "empty" }, plane, dom("figcaption", {}, title));
  });
  $("planes").replaceChildren(...drawn);
}
