// The board: shows a position and reports moves made by mouse, touch or keyboard. The legal moves are passed in.
import { dom } from "./page.js";

const FILES = "abcdefgh";
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
const squareOf = (event) => event.target.closest("[data-square]")?.dataset.square;

export class Board {
  constructor(element, dialog, onMove) {
    Object.assign(this, { element, dialog, onMove, focused: "e2" });
    element.onkeydown = (event) => this.onKey(event);
    element.onclick = (event) => this.choose(squareOf(event), true);
    element.ondragstart = (event) => (this.picked = squareOf(event)); // do not render: the dragged element must stay in the page
    element.ondragover = (event) => event.preventDefault();
    element.ondrop = (event) => event.preventDefault() ?? this.choose(squareOf(event), true);
  }

  // Show a position: pieces, legal moves, last move, the square of a king in check, and whether Black is at the bottom.
  show({ pieces, legal, last = "", check, flipped }) {
    Object.assign(this, { pieces, legal, last, check, flipped });
    this.draw([]);
  }

  // Draw the position with arrows: [{uci, width (0 to 1), kind}].
  draw(arrows) {
    Object.assign(this, { arrows, picked: null });
    this.render();
  }

  render() {
    const focus = this.element.contains(document.activeElement);
    const [ranks, files] = [[8, 7, 6, 5, 4, 3, 2, 1], [...FILES]];
    if (this.flipped) [ranks, files].forEach((list) => list.reverse());
    const rows = ranks.map((rank) => dom("div", { role: "row" }, ...files.map((file) => this.makeSquare(file + rank))));
    const arrows = this.arrows.map((arrow) => this.makeArrow(arrow));
    this.element.replaceChildren(...rows, dom("svg", { viewBox: "0 0 8 8", "aria-hidden": "true" }, ...arrows));
    if (focus) this.element.querySelector("[tabindex='0']").focus();
  }

  makeSquare(name) {
    const piece = this.pieces[name];
    const marks = {
      dark: (FILES.indexOf(name[0]) + Number(name[1])) % 2, last: this.last.slice(0, 4).match(/../g)?.includes(name),
      check: name === this.check, picked: name === this.picked,
      target: this.movesFrom(this.picked).some((move) => move.slice(2, 4) === name),
    };
    const on = Object.keys(marks).filter((mark) => marks[mark]);
    const label = [name, piece ?? "empty", ...on.filter((mark) => mark !== "dark")];
    const square = dom("div", { role: "gridcell", "data-square": name, class: on.join(" "), "aria-label": label.join(", ") });
    square.tabIndex = name === this.focused ? 0 : -1;
    Object.assign(square.dataset, { file: name[0], rank: name[1] });
    if (piece) square.append(dom("img", { src: `/pieces/${piece}.svg`, alt: "", draggable: this.movesFrom(name).length > 0 }));
    return square;
  }

  makeArrow({ uci, width, kind }) {
    const [[x, y], [toX, toY]] = [uci.slice(0, 2), uci.slice(2, 4)].map(([file, rank]) => {
      const [column, row] = [FILES.indexOf(file) + 0.5, 8.5 - rank];
      return this.flipped ? [8 - column, 8 - row] : [column, row];
    });
    const [half, length] = [0.04 + 0.14 * width, Math.hypot(toX - x, toY - y) - 0.1];
    const turned = (Math.atan2(toY - y, toX - x) * 180) / Math.PI;
    const d = `M.2 ${-half}H${length - 0.35}v-.16L${length} 0L${length - 0.35} ${half + 0.16}v-.16H.2Z`;
    return dom("path", { d, transform: `translate(${x} ${y}) rotate(${turned})`, class: kind });
  }

  movesFrom(square) {
    return square ? Object.keys(this.legal).filter((move) => move.startsWith(square)) : [];
  }

  // Pick up a piece, or drop the one that is picked up.
  async choose(name, byMouse) {
    const moves = this.movesFrom(this.picked).filter((move) => move.slice(2, 4) === name);
    this.element.classList.toggle("mouse", byMouse);
    this.focused = name;
    this.picked = !moves.length && name !== this.picked && this.movesFrom(name).length ? name : null;
    this.render();
    const move = moves.length > 1 ? await this.askPromotion(moves) : moves[0];
    if (move) this.onMove(move);
  }

  askPromotion(moves) {
    const chosen = () => moves.find((move) => move[4] === this.dialog.returnValue);
    this.dialog.returnValue = "";
    this.dialog.showModal();
    return new Promise((resolve) => (this.dialog.onclose = () => resolve(chosen())));
  }

  onKey(event) {
    if (event.key in STEPS) {
      const [right, up] = STEPS[event.key].map((by) => (this.flipped ? -by : by));
      const [file, rank] = [FILES.indexOf(this.focused[0]) + right, Number(this.focused[1]) + up];
      if (FILES[file] && rank >= 1 && rank <= 8) this.focused = FILES[file] + rank;
      this.element.classList.remove("mouse");
      this.render();
    } else if (event.key === "Enter" || event.key === " ") this.choose(this.focused, false);
    else return;
    event.preventDefault();
  }
}
