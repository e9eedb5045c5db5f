// Colours, the menu of narrow screens, and the search. Nothing is loaded from elsewhere.
"use strict";

const root = document.documentElement;
const colours = document.querySelector(".colours");
const schemes = ["auto", "light", "dark"];

// the loop explorer inside a page: it says how high it is, and takes the page's colours
const explorer = document.querySelector("iframe.explorer");
addEventListener("message", (event) => {
  if (event.source !== explorer?.contentWindow || !(event.data?.explorerHeight > 0)) return;
  explorer.style.height = `${Math.ceil(event.data.explorerHeight)}px`;
  explorer.contentWindow.postMessage({ theme: root.dataset.theme }, "*");
});

function showScheme(scheme) {
  root.dataset.theme = scheme;
  colours.querySelector("b").textContent = scheme;
  explorer?.contentWindow?.postMessage({ theme: scheme }, "*");
}
showScheme(root.dataset.theme);
colours.addEventListener("click", () => {
  const scheme = schemes[(schemes.indexOf(root.dataset.theme) + 1) % schemes.length];
  showScheme(scheme);
  try { localStorage.setItem("theme", scheme); } catch { /* a browser may forbid it: the page still changes */ }
});

const menu = document.querySelector(".menu");
menu.addEventListener("click", () => {
  menu.setAttribute("aria-expanded", String(document.body.classList.toggle("menu-open")));
});

const input = document.querySelector(".search input");
const hits = document.querySelector(".hits");
let loading = null;

function entries() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = `${input.dataset.root}/assets/search.js`;
    script.onload = () => resolve(window.searchEntries);
    script.onerror = reject;
    document.head.append(script);
  });
  return loading;
}

// Every word must occur; a word in a heading counts for more than one in the text.
function search(all, words) {
  const found = [];
  for (const entry of all) {
    const title = `${entry.title} ${entry.page}`.toLowerCase(), text = entry.text.toLowerCase();
    if (!words.every((word) => title.includes(word) || text.includes(word))) continue;
    const score = words.reduce((sum, word) => sum + (entry.title.toLowerCase().includes(word) ? 8 : 0)
      + (title.includes(word) ? 3 : 0) + Math.min(4, text.split(word).length - 1), 0);
    found.push([score, entry]);
  }
  return found.sort((a, b) => b[0] - a[0]).slice(0, 12).map((pair) => pair[1]);
}

function shownLine(entry, words) {
  const place = Math.max(0, entry.text.toLowerCase().indexOf(words[0]) - 40);
  return (place ? "… " : "") + entry.text.slice(place, place + 130);
}

async function showHits() {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  hits.hidden = words.length === 0;
  if (hits.hidden) return;
  const chosen = search(await entries(), words);
  hits.replaceChildren(...chosen.map((entry) => {
    const item = document.createElement("li"), link = document.createElement("a"), line = document.createElement("small");
    link.href = `${input.dataset.root}/${entry.url}`;
    link.textContent = entry.title === entry.page ? entry.title : `${entry.page}: ${entry.title}`;
    line.textContent = shownLine(entry, words);
    link.append(line);
    item.append(link);
    return item;
  }));
  if (chosen.length === 0) {
    const item = document.createElement("li");
    item.className = "none";
    item.textContent = "Nothing has all of these words.";
    hits.append(item);
  }
}

input.addEventListener("focus", () => { entries(); });
input.addEventListener("input", showHits);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(input|textarea)$/i.test(document.activeElement.tagName)) {
    event.preventDefault();
    input.focus();
  } else if (event.key === "Escape") {
    hits.hidden = true;
    document.body.classList.remove("menu-open");
  } else if (event.key === "Enter" && document.activeElement === input) {
    hits.querySelector("a")?.click();
  }
});
document.addEventListener("click", (event) => {
  if (!event.target.closest(".search")) hits.hidden = true;
});
