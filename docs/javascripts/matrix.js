// SPDX-License-Identifier: Apache-2.0
// Filters of the table "Each pair": by target, draft, method, and host with its runner.
// What is chosen stands in the address, so that a reader can send it: matrix.html?target=gemma4

const ROWS_BY = ["target", "draft", "method"];
const HOST = "host"; // Of columns, which begin with the version of vllm-ascend.
const IS_HOST = /^\d+\.\d+/;

function select(name, values, chosen) {
  const made = document.createElement("select");
  made.name = name;
  for (const value of ["", ...values]) {
    const option = new Option(value || `every ${name}`, value, false, value === chosen);
    made.add(option);
  }
  const label = document.createElement("label");
  label.append(`${name} `, made, " ");
  return [label, made];
}

function addFilters(table) {
  const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  const rows = [...table.tBodies[0].rows];
  const asked = new URLSearchParams(location.search);
  const hosts = heads.filter((head) => IS_HOST.test(head));
  const form = document.createElement("form");
  const shown = document.createElement("output");
  const selects = [...ROWS_BY, HOST].map((name) => {
    const place = heads.indexOf(name);
    const found = name === HOST ? hosts : rows.map((row) => row.cells[place].textContent);
    const [label, made] = select(name, [...new Set(found)], asked.get(name));
    form.append(label);
    return made;
  });

  function apply() {
    const wanted = selects.filter((one) => one.value);
    for (const row of rows) {
      row.hidden = wanted.some(
        (one) => one.name !== HOST && row.cells[heads.indexOf(one.name)].textContent !== one.value,
      );
    }
    const host = selects.at(-1).value;
    for (const row of [table.tHead.rows[0], ...rows]) {
      heads.forEach((head, place) => {
        row.cells[place].hidden = host !== "" && IS_HOST.test(head) && head !== host;
      });
    }
    shown.value = `${rows.filter((row) => !row.hidden).length} of ${rows.length} pairs`;
    const query = new URLSearchParams(wanted.map((one) => [one.name, one.value])).toString();
    history.replaceState(null, "", (query ? `?${query}` : location.pathname) + location.hash);
  }

  for (const row of rows) row.lastElementChild.style.minWidth = "24em"; // The reason, a sentence.
  form.append(shown);
  form.addEventListener("input", apply);
  table.before(form);
  apply();
}

document.addEventListener("DOMContentLoaded", () => {
  const heading = document.getElementById("each-pair");
  const tables = [...document.querySelectorAll("table")];
  const following = Node.DOCUMENT_POSITION_FOLLOWING;
  const table = heading && tables.find((one) => heading.compareDocumentPosition(one) & following);
  if (table) addFilters(table);
});
