(function () {
  "use strict";
  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

  function value(row, column) {
    const text = row.cells[column].textContent.trim();
    const size = /^([+-]?[\d.,]+) ([KMGTP]?i?B)\b/.exec(text);
    if (size) return Number(size[1].replace(/,/g, "")) * 1024 ** UNITS.indexOf(size[2]);
    return text.toLowerCase();
  }

  function compare(a, b) {
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return a < b ? -1 : a > b ? 1 : 0;
  }

  function long(table) {
    const body = table.tBodies[0], opening = Number(table.dataset.opening);
    const heads = [...table.tHead.rows[0].cells];
    let rows = [...body.rows], all = false, words = [];
    const controls = document.createElement("div");
    controls.className = "tl-controls";
    const filter = document.createElement("input");
    filter.type = "search";
    filter.placeholder = "filter by any words of a row";
    filter.setAttribute("aria-label", "filter");
    const button = document.createElement("button");
    button.type = "button";
    controls.append(filter, button);
    table.parentNode.before(controls);

    function show() {
      let found = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        const matches = words.every((word) => text.includes(word));
        found += matches;
        row.hidden = !matches || (!all && found > opening);
      }
      button.hidden = found <= opening;
      button.textContent = all ? "show the first " + opening : "show all " + found + " rows";
    }

    function sort(column, descending) {
      const ordered = rows.map((row) => [value(row, column), row]);
      ordered.sort((a, b) => (descending ? compare(b[0], a[0]) : compare(a[0], b[0])));
      rows = ordered.map((each) => each[1]);
      body.append(...rows);
      show();
    }

    heads.forEach((head, column) => {
      if (!head.textContent) return;
      head.tabIndex = 0;
      head.classList.add("tl-sortable");
      const turn = () => {
        const before = head.getAttribute("aria-sort");
        for (const each of heads) each.removeAttribute("aria-sort");
        const descending = before ? before === "ascending" : !head.classList.contains("tl-text");
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sort(column, descending);
      };
      head.addEventListener("click", turn);
      head.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        turn();
      });
    });
    filter.addEventListener("input", () => {
      words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      show();
    });
    button.addEventListener("click", () => { all = !all; show(); });
    show();
  }

  for (const table of document.querySelectorAll("table[data-opening]")) long(table);
})();
