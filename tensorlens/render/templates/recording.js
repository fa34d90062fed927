(function () {
  "use strict";
  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const JOINTS = [/(?<=[./:])(?=[A-Za-z_[])/, /(?<=[a-z])(?=[A-Z])|(?<=_)(?=\w{3})/];
  const JOINTS_OF_LINE = [/(?<=[/\\ ])(?=.)/, /(?<=_)(?=\w{3})|(?<=\.)(?=[a-z_]+$)/], LONG = 18;
  const ROWS = 200, LINES = 10, MODEL_LINES = 10, TICKS = 6, LEAST_EVENTS = 10, MOST_LISTED = 4;
  // as in records/names.py: numbers of a path, and in brackets
  const NUMBER = /((?<![^. ])\d+(?![^.:])|(?<=\[)\d+(?=\]))/g;

  function bytes(count) {
    let size = count, unit = 0;
    while (unit < UNITS.length - 1 && Number(size.toFixed(2)) >= 1024) {
      size /= 1024;
      unit += 1;
    }
    return (unit ? rounded(size) : String(count)) + " " + UNITS[unit];
  }

  // a half is rounded to even, as in texts
  function rounded(size) {
    const hundredths = size * 100, low = Math.floor(hundredths);
    return (hundredths - low === 0.5 ? (low + low % 2) / 100 : size).toFixed(2);
  }

  function duration(ns) {
    if (ns < 1000) return ns + " ns";
    for (const [scale, unit] of [[1e3, "us"], [1e6, "ms"]]) {
      if (Number((ns / scale).toFixed(2)) < 1000) return (ns / scale).toFixed(2) + " " + unit;
    }
    return (ns / 1e9).toFixed(2) + " s";
  }

  function share(part, whole) {
    return whole ? (100 * part / whole).toFixed(1) + " %" : "";
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

  // a name is broken where its parts meet
  function addName(parent, text, className) {
    const made = add(parent, "td", undefined, className);
    const [joint, inside] = className.includes("tl-long") ? JOINTS_OF_LINE : JOINTS;
    const parts = text.split(joint).flatMap((part) => part.length > LONG ? part.split(inside) : part);
    parts.forEach((part, place) => {
      if (place) add(made, "wbr");
      if (part.includes("-")) add(made, "span", part, "tl-whole"); else made.append(part);
    });
    return made;
  }

  function bar(cell, part) {
    cell.classList.add("tl-bar", "tl-peak");
    cell.style.setProperty("--tl-from", "0%");
    cell.style.setProperty("--tl-to", 100 * part + "%");
    return cell;
  }

  // layers[0-3].weight for the four names that differ in that number alone
  function commonName(names) {
    if (names.length === 1) return names[0];
    const parts = names.map((name) => name.split(NUMBER));
    let text = "";
    parts[0].forEach((part, place) => {
      const here = [...new Set(parts.map((each) => each[place]))];
      if (place % 2 === 0 || here.length === 1) { text += part; return; }
      const numbers = here.map(Number).sort((a, b) => a - b);
      const first = numbers[0], last = numbers[numbers.length - 1];
      const dash = text.endsWith("[") ? ".." : "-";
      const range = numbers.length > 2 && last - first === numbers.length - 1 ? first + dash + last
        : numbers.length > MOST_LISTED ? first + "..." + last : numbers.join(",");
      text = text.endsWith("[") ? text + range : text.replace(/\.$/, "") + "[" + range + "]";
    });
    return text;
  }

  // the level at a point of [points where it changes, levels from there on]
  function level(series, point) {
    const [points, levels] = series;
    let low = 0, high = points.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (points[middle] <= point) low = middle + 1; else high = middle;
    }
    return low ? levels[low - 1] : 0;
  }

  function sortable(head, turn) {
    head.tabIndex = 0;
    head.addEventListener("click", turn);
    head.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      turn();
    });
  }

  // lists of integers come as the changes from each to the next
  function revived(key, value) {
    if (!value || !value.changes) return value;
    let last = 0;
    return value.changes.map((change) => last += change);
  }

  async function read(source) {
    const packed = Uint8Array.from(atob(source.textContent), (each) => each.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text(), revived);
  }

  async function live(section) {
    const source = section.querySelector("script.tl-data");
    if (!source) return;
    const data = await read(source);
    // point -1 is a peak among the dropped events
    const first = data.dropped ? -1 : 0, highest = data.dropped ? -1 : data.peak;
    const plot = section.querySelector(".tl-plot");
    const frame = section.querySelector(".tl-timeline");
    const controls = section.querySelector(".tl-controls");
    const title = section.querySelector(".tl-chosen");
    const largest = section.querySelector(".tl-largest");
    const table = section.querySelector("table.tl-blocks");
    const roles = section.querySelector("table.tl-roles");
    const lines = section.querySelector("table.tl-by-line");
    const rest = table.closest(".tl-scroll").nextElementSibling;
    const restOfLines = lines && lines.closest(".tl-scroll").nextElementSibling;
    const heat = [...section.querySelectorAll("td[data-line]")];
    const filter = controls.querySelector("input");
    const cursor = add(plot, "div", undefined, "tl-cursor");
    const hover = add(plot, "div", undefined, "tl-cursor tl-hover");
    const brush = add(plot, "div", undefined, "tl-brush");
    const tip = add(plot, "div", undefined, "tl-tip");
    const text = (column, block) => blocks.texts[blocks[column][block]];
    let point = data.shown, blocks = blocksAt(point), sortedBy = "size", ascending = false, all = false;
    let shownFrom = 0, shownTo = data.width, moved = false;

    function blocksAt(where) {
      return where < 0 ? data.dropped.blocks : data.blocks;
    }

    function figure(what, where) {
      return where < 0 ? data.dropped[what] : data[what][where];
    }

    function rolesAt(where) {
      return Object.keys(data.roles)
        .map((role) => [role, where < 0 ? data.dropped.roles[role] || 0 : data.roles[role][where]])
        .filter((each) => each[1]);
    }

    function linesAt(where) {
      if (where < 0) return data.dropped.lines;
      return data.lines.map((line) => [line, level(line.levels, where)]).filter((each) => each[1]);
    }

    function event(where) {
      if (where < 0) return "before the first event that was kept";
      return data.row[where] < 0 ? data.startCalled : "event " + data.row[where].toLocaleString("en-US");
    }

    function at(where) {
      const time = figure("time", where);
      const timed = data.byTime && (where < 0 ? time > 0 : data.row[where] >= 0);
      if (!timed) return event(where);
      return "after " + duration(time) + (where < 0 ? ", " + event(where) : "");
    }

    function age(block) {
      return blocks.time[block] < 0 ? Infinity : figure("time", point) - blocks.time[block];
    }

    function resident() {
      if (point < 0) return blocks.size.map((_, block) => block);
      // blocks from before the first event are shown together
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

    const shape = (name) => name.replace(NUMBER, "*");
    // items of one list may be of any line
    const lineOf = (block) => text("name", block).endsWith("]") ? "" : text("line", block);

    function grouped(items, key) {
      const groups = new Map();
      for (const item of items) {
        const name = key(item).join("\n"), group = groups.get(name);
        if (group) group.push(item); else groups.set(name, [item]);
      }
      return [...groups.values()];
    }

    // as in text: blocks of one size whose names differ in numbers, then groups that read alike
    function families(found) {
      const equal = grouped(found, (block) =>
        [blocks.size[block], text("role", block), lineOf(block), shape(text("name", block))]);
      const named = equal.map((group) => ({ group, name: alike("name", group) }));
      const rows = grouped(named, ({ group: [block], name }) =>
        [name, text("role", block), text("line", block) ? lineOf(block) : blocks.size[block]]);
      return rows.map((parts) => {
        const group = parts.flatMap((part) => part.group);
        return {
          block: group[0],
          name: parts[0].name,
          module: alike("module", group),
          count: group.length,
          size: sum(group, (block) => blocks.size[block]),
        };
      });
    }

    function alike(column, group) {
      const found = [...new Set(group.map((block) => text(column, block)))];
      return found.every((name) => shape(name) === shape(found[0])) ? commonName(found) : found[0] + ", …";
    }

    function value(family) {
      if (sortedBy === "size") return family.size;
      if (sortedBy === "age") return age(family.block);
      return sortedBy === "name" ? family.name : text(sortedBy, family.block);
    }

    function compare(one, other) {
      const a = value(one), b = value(other);
      const order = a === b ? 0 : a < b ? -1 : 1;
      return (ascending ? order : -order) || other.size - one.size || one.block - other.block;
    }

    const sum = (list, of) => list.reduce((total, each) => total + of(each), 0);

    function show() {
      blocks = blocksAt(point);
      const here = resident(), count = figure("count", point), total = figure("total", point);
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      const matching = here.filter((block) => matches(block, words));
      const found = families(matching).sort(compare);
      const most = found.reduce((most, each) => Math.max(most, each.size), 1);
      const body = table.tBodies[0];
      body.textContent = "";
      const shown = all ? found : found.slice(0, ROWS);
      for (const each of shown) row(body, each, most);
      rest.textContent = "";
      if (shown.length < found.length) {
        const hidden = found.slice(shown.length);
        const line = add(rest, "div", "… " + counted(hidden.length, "more row") + ", "
          + bytes(sum(hidden, (each) => each.size)) + " ", "tl-remark");
        add(line, "button", "show all").onclick = () => { all = true; show(); };
      }
      const size = (block) => blocks.size[block];
      if (words.length) {
        add(rest, "div", counted(matching.length, "block") + " match, " + bytes(sum(matching, size)), "tl-remark");
      }
      const unseen = count - here.length, nbytes = total - sum(here, size);
      if (unseen > 0 || nbytes > 0) {
        add(rest, "div", "and " + counted(unseen, "smaller block") + ", " + bytes(nbytes), "tl-remark tl-soft");
      }
      const what = point === highest ? "At the peak" : point === data.peak ? data.peakCalled : "Then";
      title.textContent = what + ": " + bytes(total) + " in " + counted(count, "block") + ", " + at(point)
        + (data.reserved && point >= 0 ? ", reserved " + bytes(data.reserved[point]) : "");
      showLargest(words.length ? families(here) : found, total);
      showRoles(total);
      showLines(total);
      place();
      for (const head of table.tHead.rows[0].cells) {
        head.setAttribute("aria-sort", head.dataset.key !== sortedBy ? "none"
          : ascending ? "ascending" : "descending");
      }
    }

    function showLargest(found, total) {
      const part = (nbytes) => bytes(nbytes) + " (" + share(nbytes, total) + ")";
      const most = (list, size) => list.reduce((a, b) => a && size(a) >= size(b) ? a : b, undefined);
      largest.textContent = "";
      const write = (name, ...texts) => {
        const made = add(largest, "div");
        add(made, "span", name, "tl-device");
        made.append(texts.filter(Boolean).join(", "));
        return made;
      };
      const known = linesAt(point).filter(([line]) => line.isKnown && line.of < 0);
      const line = most(known, (each) => each[1]);
      if (line) {
        const inside = most(linesAt(point).filter(([each]) => each.of === line[0].number), (each) => each[1]);
        for (const [name, each] of [["line", line], ["model line", inside]]) {
          const made = each && write(name, each[0].place, part(each[1]));
          if (made && each[0].source) add(made, "code", each[0].source);
        }
      }
      const tensor = most(found, (each) => each.size);
      if (!tensor) return;
      const name = tensor.name + (tensor.count > 1 ? " x " + tensor.count.toLocaleString("en-US") : "");
      write("tensor", name, part(tensor.size), text("role", tensor.block), text("line", tensor.block));
    }

    function row(body, family, largest) {
      const block = family.block, made = add(body, "tr");
      const type = text("type", block), born = text("born", block);
      made.title = [type, text("phase", block), born && "born at " + born].filter(Boolean).join("\n");
      const name = addName(made, family.name, "tl-text tl-tensor");
      if (family.count > 1) add(name, "span", " x " + family.count.toLocaleString("en-US"), "tl-soft");
      add(made, "td", text("role", block), "tl-text");
      bar(add(made, "td", bytes(family.size)), family.size / largest);
      add(made, "td", blocks.time[block] < 0 ? "before" : duration(age(block)), "tl-gives-way");
      const nowhere = blocks.time[block] < 0 ? "before" : "(no line known)";
      addName(made, text("line", block) || nowhere, "tl-text tl-long");
      addName(made, family.module, "tl-text tl-tensor");
      addName(made, text("op", block), "tl-text tl-tensor");
    }

    function showRoles(total) {
      if (!roles) return;
      const body = roles.tBodies[0];
      body.textContent = "";
      for (const [role, nbytes] of rolesAt(point)) {
        const made = add(body, "tr"), name = add(made, "td", undefined, "tl-text");
        add(name, "i", undefined, "tl-swatch").style.background = data.colours[role];
        name.append(role);
        bar(add(made, "td", bytes(nbytes)), nbytes / total);
        add(made, "td", share(nbytes, total));
      }
    }

    function showLines(total) {
      const found = linesAt(point);
      if (lines) {
        const body = lines.tBodies[0], width = lines.tHead.rows[0].cells.length;
        body.textContent = "";
        const own = found.filter((each) => each[0].of < 0).sort((a, b) => b[1] - a[1]);
        const shown = own.slice(0, LINES);
        const written = (line, nbytes) => {
          const made = add(body, "tr"), isPart = line.of >= 0;
          bar(add(made, "td", bytes(nbytes)), nbytes / total);
          add(made, "td", share(nbytes, total));
          const where = addName(made, line.place, "tl-text tl-long" + (isPart ? " tl-part" : ""));
          if (isPart) where.style.setProperty("--tl-depth", 1);
          if (width > 3) add(add(made, "td", undefined, "tl-text tl-source"), "pre", line.source);
        };
        for (const [line, nbytes] of shown) {
          written(line, nbytes);
          const parts = found.filter((each) => each[0].of === line.number);
          parts.sort((a, b) => b[1] - a[1]);
          for (const part of parts.slice(0, MODEL_LINES)) written(...part);
        }
        const nbytes = total - sum(shown, (each) => each[1]);
        restOfLines.textContent = "";
        if (nbytes > 0) add(restOfLines, "div", "… other lines, " + bytes(nbytes), "tl-remark tl-soft");
      }
      const sizes = new Map();
      for (const [line, nbytes] of found) {
        if (line.of < 0) sizes.set(line.place, (sizes.get(line.place) || 0) + nbytes);
      }
      const most = Math.max(1, ...sizes.values());
      for (const cell of heat) {
        const nbytes = sizes.get(cell.dataset.line) || 0;
        cell.textContent = nbytes ? bytes(nbytes) : "";
        bar(cell, nbytes / most);
      }
    }

    // position of a unit of the picture in the visible part, in percent
    const across = (x) => 100 * (x - shownFrom) / (shownTo - shownFrom);
    const inside = (percent) => percent >= 0 && percent <= 100;

    function stand(mark, x) {
      const percent = across(x);
      mark.hidden = !inside(percent);
      mark.style.left = percent + "%";
    }

    function place() {
      stand(cursor, data.x[Math.max(point, 0)]);
      if (point < 0) cursor.hidden = true;
    }

    const marks = [...plot.querySelectorAll(".tl-peak-mark, .tl-mark-label")]
      .map((mark) => [mark, parseFloat(mark.style.left) / 100 * data.width]);
    const pictures = [...frame.querySelectorAll("svg")];
    const ticks = frame.querySelector(".tl-ticks");
    const heights = pictures.map((picture) => picture.viewBox.baseVal.height);
    const map = add(frame, "div", undefined, "tl-minimap"), lens = document.createElement("div");
    const small = pictures[0].cloneNode(true);
    for (const name of small.querySelectorAll("title")) name.remove();
    lens.className = "tl-lens";
    map.append(small, lens);
    map.title = "drag to move; double click to show all";

    function drawTicks() {
      const from = data.from + shownFrom / data.width * data.span;
      const span = (shownTo - shownFrom) / data.width * data.span;
      const rough = Math.max(span / TICKS, 1), unit = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((factor) => factor * unit).find((each) => each >= rough);
      ticks.textContent = "";
      // + 0 turns -0 into 0
      for (let tick = Math.ceil(from / step) * step + 0; tick <= from + span; tick += step) {
        const label = data.byTime ? duration(tick).replace(".00 ", " ")
          : "event " + tick.toLocaleString("en-US");
        add(ticks, "span", label).style.left = 100 * (tick - from) / span + "%";
      }
    }

    function zoom(from, to) {
      const least = data.width / Math.max(data.span, 1) * LEAST_EVENTS;
      const wide = Math.min(data.width, Math.max(to - from, least));
      shownFrom = Math.max(0, Math.min(data.width - wide, from));
      shownTo = shownFrom + wide;
      pictures.forEach((picture, number) => {
        picture.setAttribute("viewBox", [shownFrom, 0, wide, heights[number]].join(" "));
      });
      for (const [mark, x] of marks) stand(mark, x);
      const isWhole = wide >= data.width;
      map.hidden = isWhole;
      lens.style.left = 100 * shownFrom / data.width + "%";
      lens.style.width = 100 * wide / data.width + "%";
      whole.hidden = isWhole;
      drawTicks();
      place();
    }

    const whole = add(controls, "button", "show all of the time");
    whole.type = "button";
    whole.addEventListener("click", () => zoom(0, data.width));

    function unitAt(event, box) {
      const part = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
      return shownFrom + part * (shownTo - shownFrom);
    }

    function pointAt(event) {
      const box = plot.getBoundingClientRect(), x = unitAt(event, box);
      const near = 4 / box.width * (shownTo - shownFrom);
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

    // calls move during a drag, and end when the button is released
    function dragged(move, end) {
      const stop = (event) => {
        window.removeEventListener("mousemove", move);
        window.removeEventListener("mouseup", stop);
        if (end) end(event);
      };
      window.addEventListener("mousemove", move);
      window.addEventListener("mouseup", stop);
    }

    plot.classList.add("tl-live");
    table.classList.add("tl-live");
    controls.hidden = false;
    hover.hidden = tip.hidden = brush.hidden = true;
    plot.addEventListener("mousemove", (event) => {
      const where = pointAt(event), left = across(data.x[where]);
      hover.hidden = tip.hidden = !inside(left);
      hover.style.left = tip.style.left = left + "%";
      tip.style.transform = left > 60 ? "translateX(-100%)" : "";
      const parts = rolesAt(where).sort((a, b) => b[1] - a[1]);
      tip.textContent = [bytes(data.total[where]) + ", " + at(where),
        ...parts.map(([role, nbytes]) => role + " " + bytes(nbytes))].join("\n");
    });
    plot.addEventListener("mouseleave", () => { hover.hidden = tip.hidden = true; });
    plot.addEventListener("mousedown", (event) => {
      if (event.button) return;
      event.preventDefault();
      const box = plot.getBoundingClientRect(), from = unitAt(event, box), start = event.clientX;
      const ends = (now) => [from, unitAt(now, box)].sort((a, b) => a - b);
      moved = false;
      dragged((now) => {
        moved = moved || Math.abs(now.clientX - start) > 5;
        const [left, right] = ends(now);
        brush.hidden = !moved;
        brush.style.left = across(left) + "%";
        brush.style.width = across(right) - across(left) + "%";
      }, (now) => {
        brush.hidden = true;
        if (moved) zoom(...ends(now));
      });
    });
    plot.addEventListener("click", (event) => {
      if (moved) { moved = false; return; }
      go(pointAt(event));
    });
    map.addEventListener("mousedown", (event) => {
      event.preventDefault();
      const box = map.getBoundingClientRect(), wide = shownTo - shownFrom;
      const centre = (now) => {
        const middle = (now.clientX - box.left) / box.width * data.width;
        zoom(middle - wide / 2, middle + wide / 2);
      };
      centre(event);
      dragged(centre);
    });
    map.addEventListener("dblclick", () => zoom(0, data.width));
    frame.addEventListener("keydown", (event) => {
      const middle = data.x[Math.max(point, 0)], wide = shownTo - shownFrom;
      const factor = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step && !factor) return;
      event.preventDefault();
      if (step) go(point + step * (event.shiftKey ? 20 : 1));
      else zoom(middle - wide * factor / 2, middle + wide * factor / 2);
    });
    for (const button of controls.querySelectorAll("button[data-go]")) {
      const step = button.dataset.go;
      button.addEventListener("click", () => go(step === "peak" ? highest : point + Number(step)));
    }
    filter.addEventListener("input", show);
    for (const head of table.tHead.rows[0].cells) {
      sortable(head, () => {
        const key = head.dataset.key;
        ascending = key === sortedBy ? !ascending : key !== "size" && key !== "age";
        sortedBy = key;
        show();
      });
    }
    show();
    zoom(0, data.width);
  }

  for (const section of document.querySelectorAll(".tl-recording")) live(section);
})();
