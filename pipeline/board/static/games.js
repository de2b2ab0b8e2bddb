// Reviews of many games, in the Review tab: the commonest mistakes, openings, and time trouble, with examples to open.
import { $, button, change, dom, game, percent, stream, table } from "./page.js";

const OPENING_HEADS = ["opening", "games", "score", "expected", "difference ± chance (95 %)", ""];
export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const signed = (share) => `${share < 0 ? "−" : "+"}${Math.round(Math.abs(100 * share))}`;
let header = null;
let opened = null; // the example on the board

// Review all games of a player; `signal` stops it, and what has been found stays on the page.
export async function reviewGames(pgn, signal) {
  [header, opened] = [null, null];
  const settings = { pgn, name: $("player-name").value.trim(), network: $("network").value };
  await stream("/api/games", settings, signal, (part) => {
    header ??= part.header;
    if (part.summary) showSummary(part.summary);
    $("meter").hidden = false;
    Object.assign($("meter"), { max: part.of ?? 1, value: part.done ?? 0 });
    const done = `Reviewed ${part.done} of ${plural(part.of ?? 0, "game")}.`;
    $("progress").textContent = part.done ? done : "Reading the games…";
  });
}

// Show an example on the board: the position before the mistake, or the end of the opening.
function openExample({ game: number, ply, uci, best_uci: best }) {
  const { start, moves, tags } = header.games[number];
  const at = uci ? ply - 1 : Math.min(ply, moves.length);
  opened = { at, uci, best };
  change({ start, moves, at, tags });
}

// Return the arrows of the example that is open: the move played and the better one.
export const arrows = () => (opened?.uci && game.at === opened.at ? [
  { uci: opened.uci, width: 0.3, kind: "c1" }, { uci: opened.best, width: 0.3, kind: "c2" },
] : []);
export const forget = () => (opened = null);

function listExamples(rows) {
  const items = rows.map((row) => dom("li", {}, button(header.games[row.game].title, () => openExample(row)), ` ${row.text}`));
  return dom("details", {}, dom("summary", {}, plural(rows.length, "example")), dom("ul", {}, ...items));
}

function showSummary({ mistakes, openings, about_openings: aboutOpenings, time }) {
  const kinds = Object.entries(header.kinds).flatMap(([kind, text]) => [dom("dt", {}, kind), dom("dd", {}, text)]);
  const mistakeRows = mistakes.map(({ kind, phase, count, games, lost, examples: rows }) => [
    `${kind}, ${phase}`, count, games, lost.toFixed(2), listExamples(rows),
  ]);
  const openingRows = openings.map((row) => {
    const chance = dom("div", {}, row.within_chance ? "within chance" : "beyond chance");
    const difference = [`${signed(row.difference)} ± ${percent(row.error)}`, chance];
    const scores = [percent(row.score), percent(row.expected), difference];
    return [`${row.opening}, as ${row.side}`, row.games, ...scores, listExamples(row.examples)];
  });
  $("reviewed").replaceChildren(
    dom("h2", {}, `Games of ${header.player}`), dom("p", { class: "soft" }, header.notes),
    dom("h2", {}, "The commonest mistakes"),
    table(["mistake, phase", "times", "in games", "lost each", ""], mistakeRows, "left examples"),
    dom("details", {}, dom("summary", {}, "What these words mean"), dom("p", {}, header.about),
      dom("dl", {}, ...kinds)),
    dom("h2", {}, "Openings against expectation"),
    dom("p", { class: "soft" }, aboutOpenings),
    openings.length ? table(OPENING_HEADS, openingRows, "left examples") : "",
    dom("h2", {}, "Time trouble"), ...showTime(time),
  );
}

function showTime(time) {
  if (!time) return [dom("p", {}, "The games have no clocks ([%clk]).")];
  const names = { short: "less than a tenth of the starting time", other: "more time" };
  const rows = Object.entries(names).map(([key, name]) => [
    name, time[key].moves, time[key].mistakes, `${(100 * time[key].share).toFixed(1)} %`,
  ]);
  return [
    table(["time left", `moves of ${header.player}`, "mistakes", "of these moves"], rows, "left"),
    dom("p", {}, `Lost on time: ${plural(time.lost_on_time, "game")} of ${time.games}.`), listExamples(time.examples),
  ];
}
