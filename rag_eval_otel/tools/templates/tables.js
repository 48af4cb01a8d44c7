"use strict";
// Sorts and filters the tables of the class "sortable". Without this script the tables are complete.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  if (rows.length < 2) continue;
  const heads = [...table.tHead.rows[0].cells];
  const textOf = (row, column) => row.cells[column].textContent.trim();
  const numberOf = (row, column) => {
    const text = textOf(row, column).replace(/^(row )?([-+0-9.,e]+)$/, "$2");
    return text === "" ? NaN : Number(text.replaceAll(",", ""));
  };
  const compare = (column) => (a, b) => {
    const [x, y] = [numberOf(a, column), numberOf(b, column)];
    if (Number.isNaN(x) && Number.isNaN(y)) return textOf(a, column).localeCompare(textOf(b, column));
    return Number.isNaN(x) ? 1 : Number.isNaN(y) ? -1 : x - y;
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sorted = [...rows].sort(compare(column));
      body.append(...(down ? sorted.reverse() : sorted));
    });
    head.replaceChildren(button);
  });
  const label = document.createElement("label");
  const field = document.createElement("input");
  const count = document.createElement("output");
  field.type = "search";
  label.className = "filter";
  label.append("Only rows with ", field, " ", count);
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = words.length ? `${shown} of ${rows.length}` : "";
  });
  table.closest(".wide").before(label);
}
