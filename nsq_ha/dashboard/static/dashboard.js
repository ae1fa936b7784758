// Refreshes the page in place, shows times in the browser's zone, and reads charts out at the pointer or arrow keys.
// Everything works without it; texts from outside reach the page only as HTML that the server has escaped.
"use strict";

const content = document.getElementById("content");
const connection = document.getElementById("connection");
const readings = new Map(); // by id of a chart: the index that is read out

const units = {
  count: value => short(value),
  rate: value => short(value) + "/s",
  seconds: value => value < 120 ? (value < 10 ? value.toFixed(1) : value.toFixed(0)) + " s"
    : value < 7200 ? (value / 60).toFixed(0) + " min" : (value / 3600).toFixed(1) + " h",
};

function short(value) {
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= size) return (value / size).toFixed(1) + unit;
  return Number.isInteger(value) ? String(value) : value.toFixed(1);
}

function localTimes(root) {
  for (const each of root.querySelectorAll("time[data-at]")) {
    const at = new Date(Number(each.dataset.at) * 1000);
    if (!Number.isNaN(at.getTime())) {
      const text = at.toLocaleTimeString([], { hour12: false });
      if (each.textContent !== text) each.textContent = text;
    }
  }
}

// Changes the old children into the new ones in place, so that focus, selection and scroll positions stay.
function morph(old, fresh) {
  for (const { name, value } of fresh.attributes)
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes])
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name); // what a person unfolded stays so
  const keyed = new Map();
  for (const child of old.children)
    if (child.dataset && child.dataset.key !== undefined) keyed.set(child.dataset.key, child);
  let place = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const key = next.dataset ? next.dataset.key : undefined;
    const known = key === undefined ? undefined : keyed.get(key);
    if (known && known !== place) {
      old.insertBefore(known, place);
      place = known;
    }
    const isSame = place && place.nodeType === next.nodeType && place.nodeName === next.nodeName
      && (place.dataset ? place.dataset.key : undefined) === key && (place.id || "") === (next.id || "");
    if (!isSame) {
      old.insertBefore(next, place);
      continue;
    }
    if (next.nodeType === Node.TEXT_NODE) {
      if (place.data !== next.data) place.data = next.data;
    } else if (!(place.nodeName === "FORM" && place.contains(document.activeElement))) {
      morph(place, next);
    }
    place = place.nextSibling;
  }
  while (place) {
    const gone = place;
    place = place.nextSibling;
    gone.remove();
  }
}

function refresh(html) {
  const fresh = new DOMParser().parseFromString("<main>" + html + "</main>", "text/html").querySelector("main");
  localTimes(fresh);
  for (const attribute of content.attributes) fresh.setAttribute(attribute.name, attribute.value);
  morph(content, fresh);
  for (const [id, at] of readings) {
    const svg = document.querySelector("#" + CSS.escape(id) + " svg[data-chart]");
    if (svg) readOut(svg, at); else readings.delete(id);
  }
}

function readOut(svg, at) {
  const data = JSON.parse(svg.dataset.chart);
  const figure = svg.closest("figure");
  const output = figure.querySelector("output");
  svg.querySelector(".cursor")?.remove();
  if (at === null) {
    readings.delete(figure.id);
    output.hidden = true;
    return;
  }
  const last = data.times.length - 1;
  const index = Math.max(0, Math.min(last, at));
  readings.set(figure.id, index);
  const span = data.times[last] - data.times[0] || 1;
  const x = (data.times[index] - data.times[0]) / span * svg.viewBox.baseVal.width;
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("d", `M${x} 0V${svg.viewBox.baseVal.height}`);
  svg.append(cursor);
  const when = new Date(data.times[index] * 1000).toLocaleTimeString([], { hour12: false });
  const values = data.lines.map(([label, each]) =>
    `${label} ${each[index] === null ? "–" : units[data.unit](each[index])}`);
  output.textContent = `${when}  ${values.join(", ")}`;
  output.hidden = false;
}

content.addEventListener("pointermove", event => {
  const svg = event.target.closest?.("svg[data-chart]");
  if (!svg) return;
  const data = JSON.parse(svg.dataset.chart);
  const box = svg.getBoundingClientRect();
  const wanted = data.times[0] + (event.clientX - box.left) / box.width * (data.times.at(-1) - data.times[0]);
  let best = 0;
  data.times.forEach((at, index) => {
    if (Math.abs(at - wanted) < Math.abs(data.times[best] - wanted)) best = index;
  });
  readOut(svg, best);
});
content.addEventListener("pointerout", event => {
  const svg = event.target.closest?.("svg[data-chart]");
  if (svg && !svg.contains(event.relatedTarget)) readOut(svg, null);
});
content.addEventListener("focusout", event => {
  if (event.target.matches?.("svg[data-chart]")) readOut(event.target, null);
});
content.addEventListener("keydown", event => {
  const svg = event.target.closest?.("svg[data-chart]");
  if (!svg) return;
  const last = JSON.parse(svg.dataset.chart).times.length - 1;
  const now = readings.get(svg.closest("figure").id) ?? last;
  const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last, Escape: null }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  readOut(svg, next);
});

localTimes(document);
if (document.body.hasAttribute("data-live")) {
  const base = document.body.dataset.base; // "/", or the path below which a proxy shows the dashboard, with a slash
  const place = "/" + location.pathname.slice(base.length) + location.search;
  const source = new EventSource(base + "events?page=" + encodeURIComponent(place));
  source.addEventListener("page", event => {
    connection.textContent = "";
    refresh(event.data);
  });
  source.addEventListener("end", () => {
    source.close();
    connection.textContent = "The program has ended; this is its last state.";
  });
  source.addEventListener("error", () => {
    connection.textContent = "The dashboard does not answer; this page is not refreshed. Trying again …";
    // A browser gives up after an answer that is an error, such as "too many tabs".
    if (source.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 10000);
  });
}
