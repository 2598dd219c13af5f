(() => {
  "use strict";
  const text = (cell) => cell.textContent.trim();
  const number = (words) => {
    const found = words.replace(/[×%\s]/g, "").match(/^(-?\d+(\.\d+)?)(–.*)?$/);
    return found ? Number(found[1]) : NaN;
  };
  // Numbers before words, and cells without a value last, whichever way the column is sorted.
  const compare = (a, b, sign) => {
    const x = number(a), y = number(b);
    if (!Number.isNaN(x) && !Number.isNaN(y)) return sign * (x - y);
    if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
    return sign * a.localeCompare(b);
  };

  for (const table of document.querySelectorAll("table.sorted")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => text(row.cells[column]);
        body.append(...[...body.rows].sort((a, b) => compare(key(a), key(b), down ? -1 : 1)));
      });
    });
  }

  for (const table of document.querySelectorAll("table.filtered")) {
    const rows = [...table.tBodies[0].rows];
    const form = document.createElement("div"), label = document.createElement("label");
    const input = document.createElement("input"), choice = document.createElement("select");
    const count = document.createElement("output");
    form.className = "filter";
    form.setAttribute("role", "search");
    label.append("Filter ", input);
    input.type = "search";
    const states = ["", ...new Set(rows.map((row) => row.dataset.state))];
    choice.setAttribute("aria-label", "State");
    choice.append(...states.map((state) => new Option(state || "every state", state)));
    count.setAttribute("role", "status");
    form.append(label, choice, count);
    const apply = () => {
      const words = input.value.toLowerCase().split(/\s+/);
      let shown = 0;
      for (const row of rows) {
        const said = row.textContent.toLowerCase();
        const here = words.every((w) => said.includes(w)) && (!choice.value || row.dataset.state === choice.value);
        row.hidden = !here;
        shown += here;
      }
      count.textContent = `${shown} of ${rows.length} shown`;
    };
    input.addEventListener("input", apply);
    choice.addEventListener("change", apply);
    table.parentElement.before(form);
    apply();
  }

  const opened = [];
  addEventListener("beforeprint", () => {
    for (const box of document.querySelectorAll("details:not([open])")) {
      box.open = true;
      opened.push(box);
    }
  });
  addEventListener("afterprint", () => {
    for (const box of opened.splice(0)) box.open = false;
  });
})();
