// Keeps the page up to date. The server sends the inside of <main>, escaped; what is
// the same stays, so that focus, scrolling and selections do.
"use strict";

const live = document.getElementById("live");
const pause = document.getElementById("pause");
const connection = document.getElementById("connection");
let stream = null, paused = false, heard = Date.now();

function patch(old, now) {
  if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName) {
    old.replaceWith(document.importNode(now, true));
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== now.nodeValue) old.nodeValue = now.nodeValue;
    return;
  }
  for (const a of [...old.attributes]) if (!now.hasAttribute(a.name)) old.removeAttribute(a.name);
  for (const a of now.attributes) if (old.getAttribute(a.name) !== a.value) old.setAttribute(a.name, a.value);
  patchChildren(old, now);
}

function patchChildren(old, now) {
  const olds = [...old.childNodes], nows = [...now.childNodes];
  nows.forEach((n, i) => i < olds.length ? patch(olds[i], n) : old.append(document.importNode(n, true)));
  olds.slice(nows.length).forEach((o) => o.remove());
}

function open() {
  if (stream || paused || document.hidden) return;
  stream = new EventSource("events");
  stream.addEventListener("page", (e) => {
    heard = Date.now();
    say("Up to date.");
    patchChildren(live, new DOMParser().parseFromString("<main>" + e.data + "</main>", "text/html").querySelector("main"));
  });
}

function close() {
  if (stream) stream.close();
  stream = null;
}

function say(text) {
  if (connection.textContent !== text) connection.textContent = text;
}

pause.addEventListener("click", () => {
  paused = !paused;
  pause.textContent = paused ? "Resume updates" : "Pause updates";
  if (paused) {
    close();
    say("Updates are paused.");
  } else {
    heard = Date.now();
    open();
  }
});

document.addEventListener("visibilitychange", () => {
  close();
  heard = Date.now();
  open();
});

setInterval(() => {
  if (!paused && !document.hidden && Date.now() - heard > 5000) {
    say("Not up to date: no answer for " + Math.round((Date.now() - heard) / 1000) + " s.");
    if (stream && stream.readyState === EventSource.CLOSED) close(); // refused, for now
    open();
  }
}, 1000);

document.getElementById("updates").hidden = false;
open();
