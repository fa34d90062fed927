(function () {
  "use strict";
  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const ROWS = 200;

  function bytes(count) {
    let size = count, unit = 0;
    while (unit < UNITS.length - 1 && Number(size.toFixed(2)) >= 1024) {
      size /= 1024;
      unit += 1;
    }
    return (unit ? size.toFixed(2) : String(count)) + " " + UNITS[unit];
  }

  function duration(ns) {
    if (ns < 1000) return ns + " ns";
    for (const [scale, unit] of [[1e3, "us"], [1e6, "ms"]]) {
      if (Number((ns / scale).toFixed(2)) < 1000) return (ns / scale).toFixed(2) + " " + unit;
    }
    return (ns / 1e9).toFixed(2) + " s";
  }

  function counted(number, word) {
    return number.toLocaleString("en-US") + " " + word + (number === 1 ? "" : "s");
  }

  function add(parent, tag, text, className) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    parent.appendChild(made);
    return made;
  }

  function live(section) {
    const source = section.querySelector("script.tl-data");
    if (!source) return;
    const data = JSON.parse(source.textContent);
    // before the first point there may be one more, whose event was dropped
    const first = data.dropped ? -1 : 0, highest = data.dropped ? -1 : data.peak;
    const plot = section.querySelector(".tl-plot");
    const frame = section.querySelector(".tl-timeline");
    const controls = section.querySelector(".tl-controls");
    const title = section.querySelector(".tl-chosen");
    const table = section.querySelector("table.tl-blocks");
    const rest = section.querySelector(".tl-rest");
    const filter = controls.querySelector("input");
    const cursor = add(plot, "div", undefined, "tl-cursor");
    const hover = add(plot, "div", undefined, "tl-cursor tl-hover");
    const tip = add(plot, "div", undefined, "tl-tip");
    const text = (column, block) => blocks.texts[blocks[column][block]];
    let point = data.shown, blocks = blocksAt(point), sortedBy = "size", ascending = false, all = false;

    function blocksAt(where) {
      return where < 0 ? data.dropped.blocks : data.blocks;
    }

    function figure(what, where) {
      return where < 0 ? data.dropped[what] : data[what][where];
    }

    function event(where) {
      if (where < 0) return "before the first event that was kept";
      return data.row[where] < 0 ? data.startCalled : "event " + data.row[where].toLocaleString("en-US");
    }

    function at(where) {
      const time = figure("time", where);
      const timed = data.byTime && (where < 0 ? time > 0 : data.row[where] >= 0);
      return timed ? "after " + duration(time) + ", " + event(where) : event(where);
    }

    function age(block) {
      return blocks.time[block] === null ? Infinity : figure("time", point) - blocks.time[block];
    }

    function resident() {
      if (point < 0) return blocks.size.map((_, block) => block);
      // all that was there at the start was there at once
      const row = data.row[point], last = Math.max(row, data.starts - 1), found = [];
      for (let block = 0; block < blocks.row.length; block += 1) {
        const free = blocks.free[block];
        if (blocks.row[block] <= last && (free < 0 || free > last)) found.push(block);
      }
      return found;
    }

    function matches(block, words) {
      const where = ["name", "role", "line", "module", "op", "phase", "type"]
        .map((column) => text(column, block)).join("\n").toLowerCase();
      return words.every((word) => where.includes(word));
    }

    function value(block) {
      if (sortedBy === "size") return blocks.size[block];
      if (sortedBy === "age") return age(block);
      return text(sortedBy, block);
    }

    function compare(one, other) {
      const a = value(one), b = value(other);
      const order = a === b ? 0 : a < b ? -1 : 1;
      return (ascending ? order : -order) || blocks.size[other] - blocks.size[one] || one - other;
    }

    function show() {
      blocks = blocksAt(point);
      const here = resident(), count = figure("count", point), total = figure("total", point);
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      const found = here.filter((block) => matches(block, words)).sort(compare);
      const sum = (list) => list.reduce((total, block) => total + blocks.size[block], 0);
      const largest = here.reduce((most, block) => Math.max(most, blocks.size[block]), 1);
      const body = table.tBodies[0];
      body.textContent = "";
      const shown = all ? found : found.slice(0, ROWS);
      for (const block of shown) row(body, block, largest);
      rest.textContent = "";
      if (shown.length < found.length) {
        const hidden = found.slice(shown.length);
        const line = add(rest, "div", "… " + counted(hidden.length, "more row") + ", " + bytes(sum(hidden)) + " ",
          "tl-remark");
        add(line, "button", "show all").onclick = () => { all = true; show(); };
      }
      if (words.length) {
        add(rest, "div", counted(found.length, "block") + " match, " + bytes(sum(found)), "tl-remark");
      }
      const unseen = count - here.length, nbytes = total - sum(here);
      if (unseen > 0 || nbytes > 0) {
        add(rest, "div", "and " + counted(unseen, "smaller block") + ", " + bytes(nbytes), "tl-remark tl-soft");
      }
      const what = point === highest ? "At the peak" : point === data.peak ? data.peakCalled : "Then";
      title.textContent = what + ": " + bytes(total) + " in " + counted(count, "block") + ", " + at(point)
        + (data.reserved && point >= 0 ? ", reserved " + bytes(data.reserved[point]) : "");
      cursor.hidden = point < 0;
      cursor.style.left = 100 * data.x[Math.max(point, 0)] / data.width + "%";
      for (const head of table.tHead.rows[0].cells) {
        head.setAttribute("aria-sort", head.dataset.key !== sortedBy ? "none"
          : ascending ? "ascending" : "descending");
      }
    }

    function row(body, block, largest) {
      const made = add(body, "tr");
      const type = text("type", block), born = text("born", block);
      made.title = [type, text("phase", block), born && "born at " + born].filter(Boolean).join("\n");
      add(made, "td", text("name", block), "tl-text tl-tensor");
      add(made, "td", text("role", block), "tl-text");
      const size = add(made, "td", bytes(blocks.size[block]), "tl-bar tl-peak");
      size.style.setProperty("--tl-from", "0%");
      size.style.setProperty("--tl-to", 100 * blocks.size[block] / largest + "%");
      add(made, "td", blocks.time[block] === null ? "before" : duration(age(block)));
      add(made, "td", text("line", block) || "(no line known)", "tl-text tl-long");
      add(made, "td", text("module", block), "tl-text tl-tensor");
      add(made, "td", text("op", block), "tl-text tl-long");
    }

    function pointAt(event) {
      const box = plot.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * data.width;
      const near = 4 / box.width * data.width;
      if (Math.abs(data.x[data.peak] - x) <= near) return data.peak;
      let low = 0, high = data.x.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (data.x[middle] <= x) low = middle; else high = middle - 1;
      }
      return low;
    }

    function go(where) {
      point = Math.max(first, Math.min(data.x.length - 1, where));
      all = false;
      show();
    }

    plot.classList.add("tl-live");
    table.classList.add("tl-live");
    controls.hidden = false;
    hover.hidden = tip.hidden = true;
    plot.addEventListener("mousemove", (event) => {
      const where = pointAt(event), left = 100 * data.x[where] / data.width;
      hover.hidden = tip.hidden = false;
      hover.style.left = tip.style.left = left + "%";
      tip.style.transform = left > 70 ? "translateX(-100%)" : "";
      tip.textContent = bytes(data.total[where]) + ", " + at(where);
    });
    plot.addEventListener("mouseleave", () => { hover.hidden = tip.hidden = true; });
    plot.addEventListener("click", (event) => go(pointAt(event)));
    frame.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      go(point + step * (event.shiftKey ? 20 : 1));
    });
    for (const button of controls.querySelectorAll("button")) {
      const step = button.dataset.go;
      button.addEventListener("click", () => go(step === "peak" ? highest : point + Number(step)));
    }
    filter.addEventListener("input", show);
    for (const head of table.tHead.rows[0].cells) {
      head.addEventListener("click", () => {
        const key = head.dataset.key;
        ascending = key === sortedBy ? !ascending : key !== "size" && key !== "age";
        sortedBy = key;
        show();
      });
    }
    show();
  }

  for (const section of document.querySelectorAll(".tl-recording")) live(section);
})();
