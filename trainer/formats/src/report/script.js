
"use strict";
(() => {
  document.documentElement.classList.add("with-script");
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // An exponential moving average without a bias at its start.
  const smooth = (path, weight) => {
    let sum = 0, norm = 0;
    return path.replace(/([ML][-\d.]+) ([-\d.]+)(h0)?/g, (_, start, y, dot) => {
      sum = sum * weight + (1 - weight) * y;
      norm = norm * weight + 1 - weight;
      return `${start} ${(sum / norm).toFixed(1)}${dot || ""}`;
    });
  };
  const slider = document.getElementById("smoothing");
  slider?.addEventListener("input", () => {
    const weight = Number(slider.value);
    document.documentElement.classList.toggle("is-smooth", weight > 0);
    all("path.smooth").forEach((path) => path.remove());
    if (weight === 0) return;
    all("path.line").forEach((path) => {
      const copy = path.cloneNode();
      copy.setAttribute("class", path.getAttribute("class").replace("line", "smooth"));
      copy.setAttribute("d", smooth(path.dataset.means || path.getAttribute("d"), weight));
      path.after(copy);
    });
  });

  // The values at the step below the pointer.
  const numbers = (text) => text.split(" ").map(Number);
  const nearest = (steps, step) => {
    let low = 0, high = steps.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle; else high = middle;
    }
    return step - steps[low] <= steps[high] - step ? low : high;
  };
  const runs = all(".runs label").map((label) => label.textContent);
  all("figure.plot").forEach((figure) => {
    const [low, high] = [Number(figure.dataset.low), Number(figure.dataset.high)];
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    figure.append(tip);
    let lines;
    const show = (event) => {
      lines ??= all(".linear path.line", figure).map((path) => ({
        color: path.getAttribute("class").match(/\bc\d\b/)[0],
        hollow: path.classList.contains("dashed") ? " hollow" : "",
        name: path.dataset.name, run: path.dataset.run,
        x: numbers(path.dataset.x), y: path.dataset.y.split(" "),
      }));
      const svg = all("svg", figure).find((svg) => svg.getBoundingClientRect().width > 0);
      if (!svg) return;
      const box = svg.getBoundingClientRect();
      const share = ((event.clientX - box.left) / box.width * 360 - 44) / 308;
      const step = low + Math.min(1, Math.max(0, share)) * (high - low);
      tip.replaceChildren();
      let at = null;
      for (const line of lines) {
        const toggle = document.getElementById(`r${line.run}`);
        if (toggle && !toggle.checked) continue;
        const nth = nearest(line.x, step);
        if (at === null || Math.abs(line.x[nth] - step) < Math.abs(at - step)) at = line.x[nth];
        const row = document.createElement("div");
        const swatch = document.createElement("i");
        swatch.className = `swatch ${line.color}${line.hollow}`;
        const run = runs.length ? `${runs[line.run]} ` : "";
        row.append(swatch, `${run}${line.name} ${line.y[nth]}`);
        tip.append(row);
      }
      if (at === null) { tip.hidden = true; return; }
      const head = document.createElement("b");
      head.textContent = `step ${at}`;
      tip.prepend(head);
      tip.hidden = false;
      const own = figure.getBoundingClientRect();
      const left = event.clientX - own.left;
      const room = own.width - tip.offsetWidth;
      tip.style.left = `${Math.max(0, Math.min(room, left > own.width / 2 ? left - tip.offsetWidth - 14 : left + 14))}px`;
      tip.style.top = `${box.top - own.top + 6}px`;
    };
    figure.addEventListener("pointermove", show);
    figure.addEventListener("pointerdown", show);
    figure.addEventListener("pointerleave", () => { tip.hidden = true; });
  });
})();
