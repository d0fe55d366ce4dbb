"use strict";

// Light or dark, as the system has it until the reader says otherwise.
(() => {
  const button = document.querySelector(".theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const label = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    label();
  });
  system.addEventListener("change", label);
  label();
  button.hidden = false;
})();

// A filter shows the items that hold all of its words.
for (const block of document.querySelectorAll(".filtered")) {
  const input = block.querySelector(".filter");
  const output = block.querySelector("output");
  const items = [...block.querySelectorAll("[data-item]")];
  const texts = items.map((item) => item.textContent.toLowerCase());
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    items.forEach((item, index) => {
      item.hidden = !words.every((word) => texts[index].includes(word));
      shown += item.hidden ? 0 : 1;
    });
    output.textContent = shown === items.length ? `${shown} shown` : `${shown} of ${items.length} shown`;
  });
}

// A heading sorts its table; what has no value stays at the end.
for (const table of document.querySelectorAll("table.data")) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  const status = table.closest(".filtered").querySelector("output");
  const value = (row, index, number) => {
    const cell = row.cells[index];
    const text = cell.dataset.sort ?? cell.textContent.trim();
    return number ? (text === "" || isNaN(text) ? null : Number(text)) : text;
  };
  headings.forEach((heading, index) => {
    const number = heading.classList.contains("number");
    heading.querySelector("button").addEventListener("click", () => {
      const first = number ? "descending" : "ascending";
      const second = number ? "ascending" : "descending";
      const order = heading.getAttribute("aria-sort") === first ? second : first;
      const sign = order === "ascending" ? 1 : -1;
      const keyed = [...body.rows].map((row) => [value(row, index, number), row]);
      keyed.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null);
        return sign * (number ? a - b : a.localeCompare(b, "en", { numeric: true }));
      });
      body.append(...keyed.map(([, row]) => row));
      headings.forEach((other) => other.setAttribute("aria-sort", other === heading ? order : "none"));
      status.textContent = `sorted by ${heading.textContent.trim()}, ${order}`;
    });
  });
}

// Marks of a chart tell their figures to the mouse, and to the keyboard: Tab to a chart, arrows inside it.
(() => {
  const tooltip = document.getElementById("tooltip");
  const hide = () => { tooltip.hidden = true; };
  const show = (mark) => {
    tooltip.textContent = mark.getAttribute("aria-label");
    tooltip.hidden = false;
    const box = mark.getBoundingClientRect();
    const own = tooltip.getBoundingClientRect();
    const left = Math.min(Math.max(8, box.left + box.width / 2 - own.width / 2), innerWidth - own.width - 8);
    const above = box.top - own.height - 8;
    tooltip.style.left = `${Math.max(8, left)}px`;
    tooltip.style.top = `${above > 0 ? above : box.bottom + 8}px`;
  };
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  for (const chart of document.querySelectorAll("svg.chart")) {
    const marks = [...chart.querySelectorAll(".role-mark [aria-label]")];
    marks.forEach((mark, index) => {
      mark.setAttribute("tabindex", index ? "-1" : "0");
      mark.addEventListener("pointerenter", () => show(mark));
      mark.addEventListener("pointerleave", hide);
      mark.addEventListener("focus", () => show(mark));
      mark.addEventListener("blur", hide);
      mark.addEventListener("keydown", (event) => {
        if (event.key === "Escape") hide();
        const next = marks[index + steps[event.key]];
        if (!next) return;
        event.preventDefault();
        mark.setAttribute("tabindex", "-1");
        next.setAttribute("tabindex", "0");
        next.focus();
      });
    });
  }
  addEventListener("scroll", hide, { passive: true });
})();
