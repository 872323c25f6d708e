"use strict";
// Everything can be read without this script: it adds values at the pointer, order, and tabs.
(function () {
  const each = (nodes, act) => Array.prototype.forEach.call(nodes, act);
  const tip = document.getElementById("tip");

  function show(text, x, y) {
    if (tip.textContent !== text) tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, x - box.width / 2), document.documentElement.clientWidth - box.width - 8);
    const above = y - box.height - 14;
    tip.style.left = left + "px";
    tip.style.top = (above > 8 ? above : y + 18) + "px";
  }
  function hide() {
    tip.hidden = true;
    each(document.querySelectorAll(".hot"), (node) => node.classList.remove("hot"));
  }
  function heat(node) {
    each(document.querySelectorAll(".hot"), (other) => other.classList.remove("hot"));
    node.classList.add("hot");
  }

  // Charts: the mark nearest to the pointer, or the next one by arrow keys.
  each(document.querySelectorAll(".plot"), (plot) => {
    const marks = Array.prototype.slice.call(plot.querySelectorAll(".mark"));
    if (!marks.length) return;
    const order = marks.slice().sort((a, b) => a.dataset.x - b.dataset.x);
    let at = -1;
    function say(mark) {
      const box = plot.getBoundingClientRect();
      heat(mark);
      show(mark.dataset.tip, box.left + (mark.dataset.x / 100) * box.width, box.top + (mark.dataset.y / 100) * box.height);
    }
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      let best = null, least = Infinity;
      marks.forEach((mark) => {
        const dx = (mark.dataset.x / 100) * box.width - (event.clientX - box.left);
        const dy = (mark.dataset.y / 100) * box.height - (event.clientY - box.top);
        const far = dx * dx + (mark.tagName === "rect" ? 0 : 0.3 * dy * dy);
        if (far < least) { least = far; best = mark; }
      });
      at = order.indexOf(best);
      say(best);
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") { hide(); return; }
      if (!step && event.key !== "Home" && event.key !== "End") return;
      event.preventDefault();
      at = event.key === "Home" ? 0 : event.key === "End" ? order.length - 1 : Math.min(Math.max(at + step, 0), order.length - 1);
      say(order[at]);
    });
  });

  // Estimates: values at the pointer, order, and a search.
  each(document.querySelectorAll(".forest"), (forest) => {
    const body = forest.querySelector("tbody");
    const rows = Array.prototype.slice.call(body.rows);
    rows.forEach((row) => {
      row.addEventListener("pointermove", (event) => { heat(row); show(row.dataset.tip, event.clientX, event.clientY); });
      row.addEventListener("pointerleave", hide);
    });
    const tools = forest.querySelector(".tools");
    if (!tools) return;
    tools.hidden = false;
    const buttons = tools.querySelectorAll("button");
    each(buttons, (button) => button.addEventListener("click", () => {
      const by = button.dataset.sort;
      const sign = by === "index" ? 1 : -1;
      rows.slice().sort((a, b) => sign * (a.dataset[by] - b.dataset[by]) || a.dataset.index - b.dataset.index)
        .forEach((row) => body.appendChild(row));
      each(buttons, (other) => other.setAttribute("aria-pressed", String(other === button)));
    }));
    const search = tools.querySelector("input");
    if (search) search.addEventListener("input", () => {
      const wanted = search.value.toLowerCase();
      rows.forEach((row) => { row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted); });
    });
  });

  // Parts as tabs; without a script, and in print, they follow each other.
  const tabs = Array.prototype.slice.call(document.querySelectorAll("[role=tab]"));
  const panels = tabs.map((tab) => document.getElementById(tab.getAttribute("aria-controls")));
  function open(index, focus) {
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === index));
      tab.tabIndex = i === index ? 0 : -1;
      panels[i].classList.toggle("closed", i !== index);
    });
    hide();
    if (focus) tabs[index].focus();
    tabs[index].scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => {
      open(index, false);
      history.replaceState(null, "", "#" + panels[index].id);
    });
    tab.addEventListener("keydown", (event) => {
      const places = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: tabs.length - 1 };
      if (!(event.key in places)) return;
      event.preventDefault();
      open((places[event.key] + tabs.length) % tabs.length, true);
    });
  });
  function openNamed() {
    const named = panels.findIndex((panel) => "#" + panel.id === location.hash);
    open(Math.max(named, 0), false);
  }
  document.documentElement.classList.add("live");
  openNamed();
  window.addEventListener("hashchange", openNamed);
  window.addEventListener("scroll", hide, { passive: true });
})();
