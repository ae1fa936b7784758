// What the switcher of versions can do more with a script; docs/_ext/versions.py says how it works.
(() => {
  "use strict";
  const box = document.querySelector("details.versions");
  if (!box) return;
  const { version, page, notYet } = box.dataset;
  const root = new URL(document.documentElement.dataset.content_root, document.location.href);
  const list = box.querySelector("ul");
  // Other versions can be reached only if the folder of these pages has their version's name.
  const hasNeighbours = decodeURIComponent(root.pathname).endsWith(`/${version}/`);
  const isServed = root.protocol.startsWith("http");

  const isList = (entries) =>
    Array.isArray(entries) &&
    entries.every(
      (entry) =>
        /^\d+(\.\w+)+$/.test(entry?.version) && (entry.released === null || /^[\d-]+$/.test(entry.released)),
    );

  const show = (entries) => {
    list.replaceChildren(
      ...entries.map((entry) => {
        const isThis = entry.version === version;
        const name = document.createElement(isThis ? "strong" : hasNeighbours ? "a" : "b");
        name.textContent = entry.version;
        if (isThis) name.setAttribute("aria-current", "true");
        else if (hasNeighbours) name.href = new URL(`../${entry.version}/index.html`, root);
        const released = document.createElement("span");
        released.textContent = entry.released ?? notYet;
        const item = document.createElement("li");
        item.append(name, " ", released);
        return item;
      }),
    );
    box.nextElementSibling?.matches(".newer-version") && box.nextElementSibling.remove();
    const newest = entries.find((entry) => entry.released !== null);
    const place = (name) => entries.findIndex((entry) => entry.version === name);
    if (newest && place(newest.version) < place(version)) {
      const note = document.createElement("p");
      note.className = "newer-version";
      note.textContent = `The newest release is ${newest.version}.`;
      box.after(note);
    }
  };

  const shown = [...list.children].map((item) => {
    const released = item.lastElementChild.textContent;
    return { version: item.firstElementChild.textContent, released: released === notYet ? null : released };
  });
  show(shown);

  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !box.open) return;
    box.open = false;
    box.querySelector("summary").focus();
  });

  // Pages from a disk may read no other file.
  if (!isServed || !hasNeighbours) return;

  fetch(new URL("../versions.json", root))
    .then((answer) => (answer.ok ? answer.json() : shown))
    .then((entries) => isList(entries) && entries.some((entry) => entry.version === version) && show(entries))
    .catch(() => {}); // the list of the build stays

  // A link leads to the same page of the other version, if that has it.
  box.addEventListener("toggle", () => {
    if (!box.open) return;
    for (const link of list.querySelectorAll("a")) {
      const same = new URL(page, link.href);
      fetch(same, { method: "HEAD" })
        .then((answer) => answer.ok && (link.href = same))
        .catch(() => {});
    }
  });
})();
