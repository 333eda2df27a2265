"use strict";
(() => {
  const tip = document.getElementById("tip");

  // Words of a mark: its <title>, taken out so that the browser does not show it a second time.
  const words = (mark) => {
    const title = mark.querySelector(":scope > title");
    if (title) { mark.dataset.tip = title.textContent; title.remove(); }
    return mark.dataset.tip || "";
  };
  const show = (mark) => {
    tip.textContent = words(mark);
    const at = mark.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const left = Math.min(Math.max(4, at.left + at.width / 2 - own.width / 2), innerWidth - own.width - 4);
    const above = at.top - own.height - 6;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 2 ? above : Math.min(at.bottom + 6, innerHeight - own.height - 2)}px`;
  };
  const hide = () => { tip.textContent = ""; };

  for (const figure of document.querySelectorAll("svg.figure")) {
    let place = -1;
    const marks = figure.getElementsByClassName("mark");
    const leave = () => {
      for (const mark of figure.querySelectorAll(".mark.at")) mark.classList.remove("at");
      hide();
    };
    figure.addEventListener("pointerover", (event) => {
      const mark = event.target.closest(".mark");
      if (mark) show(mark); else hide();
    });
    figure.addEventListener("pointerleave", hide);
    figure.addEventListener("blur", () => { place = -1; leave(); });
    figure.addEventListener("keydown", (event) => {
      const next = {
        ArrowRight: place + 1, ArrowDown: place + 1, ArrowLeft: place - 1, ArrowUp: place - 1,
        Home: 0, End: marks.length - 1,
      }[event.key];
      if (event.key === "Escape") { leave(); return; }
      if (next === undefined || !marks.length || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      leave();
      place = Math.min(Math.max(0, next), marks.length - 1);
      marks[place].classList.add("at");
      marks[place].scrollIntoView({ block: "nearest", inline: "nearest" });
      show(marks[place]);
    });
  }
  addEventListener("scroll", (event) => {
    if (!document.querySelector(".mark.at")) hide();
  }, { capture: true, passive: true });

  // What a cell sorts as: its first number, or its words. Nothing measured comes last.
  const key = (cell, isNumber) => {
    const text = cell.textContent;
    if (text === "-" || text === "" || text === "none") return null;
    if (!isNumber) return text;
    const found = /[-+]?\d+(\.\d+)?/.exec(text);
    return found ? Number(found[0]) : null;
  };
  const compare = (a, b) => typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });

  const sortable = (table) => {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    heads.forEach((head, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
        const isNumber = head.classList.contains("n");
        const rows = [...body.rows].map((row) => [key(row.cells[i], isNumber), row]);
        rows.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null) : sign * compare(a, b));
        body.append(...rows.map(([, row]) => row));
      });
    });
  };

  const filterable = (table) => {
    const rows = [...table.tBodies[0].rows];
    const box = document.createElement("p"), label = document.createElement("label");
    const input = document.createElement("input"), count = document.createElement("span");
    box.className = "filter";
    input.type = "search";
    input.id = `filter-${table.id}`;
    input.placeholder = "words that a row must hold";
    input.setAttribute("aria-controls", table.id);
    label.htmlFor = input.id;
    label.textContent = "Filter";
    count.setAttribute("role", "status");
    count.textContent = `${rows.length} rows`;
    const texts = rows.map((row) => [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase());
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let n = 0;
      rows.forEach((row, i) => {
        row.hidden = !wanted.every((word) => texts[i].includes(word));
        n += !row.hidden;
      });
      count.textContent = `${n} of ${rows.length} rows`;
    });
    box.append(label, input, count);
    table.parentElement.before(box);
  };

  for (const table of document.querySelectorAll("table")) {
    sortable(table);
    if (table.tBodies[0].rows.length > 6) filterable(table);
  }
  document.documentElement.dataset.ready = "yes";
})();
