"use strict";
(() => {
  const names = JSON.parse(document.getElementById("names").textContent).map((name) => name.toLowerCase());
  const form = document.querySelector("form.filter");
  const shown = document.getElementById("shown");
  const items = [...document.querySelectorAll(".item")].map((element) => ({
    element,
    kind: element.dataset.v,
    ranges: element.dataset.n ? element.dataset.n.split(",").map((range) => range.split("-").map(Number)) : [],
    hit: element.querySelector(".hit"),
    text: null,
  }));

  // How many of the first nodes have a word in their names, so that a range of nodes is looked up in one step.
  const countsOf = (word) => {
    const counts = new Uint32Array(names.length + 1);
    names.forEach((name, at) => { counts[at + 1] = counts[at] + (name.includes(word) ? 1 : 0); });
    return counts;
  };
  const matched = (item, counts) =>
    item.ranges.reduce((sum, range) => sum + counts[(range[1] ?? range[0]) + 1] - counts[range[0]], 0);
  const someOf = (item, word) => {
    const found = [];
    for (const [first, last] of item.ranges) {
      for (let at = first; at <= (last ?? first) && found.length < 4; at += 1) {
        if (names[at].includes(word)) found.push(names[at]);
      }
    }
    return found;
  };
  const sizeOf = (item) => item.ranges.reduce((sum, range) => sum + (range[1] ?? range[0]) - range[0] + 1, 0);

  const filter = () => {
    const words = form.query.value.toLowerCase().split(/\s+/).filter(Boolean).map((word) => [word, countsOf(word)]);
    const kinds = form.state.value;
    let count = 0;
    for (const item of items) {
      item.hit && (item.hit.textContent = "");
      item.text ??= item.element.textContent.toLowerCase();
      let fits = !kinds || !item.kind || kinds.includes(item.kind);
      for (const [word, counts] of fits ? words : []) {
        const nodes = matched(item, counts);
        fits &&= nodes > 0 || item.text.includes(word);
        if (fits && item.hit && nodes > 0 && nodes < sizeOf(item)) {
          item.hit.textContent = "among them " + someOf(item, word).join(", ") + (nodes > 4 ? ", …" : "");
        }
      }
      item.element.hidden = !fits;
      count += fits ? 1 : 0;
    }
    shown.textContent = words.length || kinds ? `${count} of ${items.length} rows` : "";
  };

  if (form) {
    form.hidden = false;
    form.addEventListener("input", filter);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.query.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { form.query.value = ""; filter(); }
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "/" && !event.ctrlKey && !event.metaKey && !/^(INPUT|SELECT)$/.test(event.target.tagName)) {
        event.preventDefault();
        form.query.focus();
      }
    });
    filter();
  }

  const order = "fwuqapsn";
  const natural = new Intl.Collator("en", { numeric: true });
  const keyOf = (cell) => {
    if (cell.closest(".grid") && cell.tagName === "TD") return order.indexOf(cell.className);
    const number = Number(cell.dataset.k ?? cell.textContent);
    return cell.textContent.trim() !== "" && !Number.isNaN(number) ? number : cell.textContent.trim();
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : natural.compare(a, b));

  for (const button of document.querySelectorAll("button.sort")) {
    button.disabled = false;
    button.addEventListener("click", () => {
      const head = button.parentElement;
      const column = head.cellIndex;
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const body = head.closest("table").tBodies[0];
      const rows = [...body.rows].map((row) => [keyOf(row.cells[column]), row]);
      rows.sort((a, b) => (up ? compare(a[0], b[0]) : compare(b[0], a[0])));
      body.append(...rows.map((row) => row[1]));
    });
  }

  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = button.previousElementSibling;
      getSelection().selectAllChildren(text);
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  // On paper everything is open.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const one of closed) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of closed) one.open = false; });
})();
