"use strict";
(() => {
  const root = document.documentElement;
  const values = JSON.parse(document.getElementById("values").textContent);
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  const panels = tabs.map((tab) => document.getElementById(tab.getAttribute("aria-controls")));
  const system = matchMedia("(prefers-color-scheme: dark)");
  root.classList.add("js");

  // Colours: "$name" in a figure refers to the CSS variable --name, which differs between light and dark.
  const filled = (value, style) => {
    if (typeof value === "string") return value[0] === "$" ? style.getPropertyValue(`--${value.slice(1)}`).trim() : value;
    if (Array.isArray(value)) return value.map((item) => filled(item, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, filled(item, style)]));
    }
    return value;
  };
  const axis = (given = {}) => ({
    gridcolor: "$line", linecolor: "$line", tickcolor: "$line", zeroline: false, fixedrange: true, automargin: true,
    ...given, title: { standoff: 10, ...given.title, font: { color: "$quiet", size: 13 } },
    tickfont: { color: "$quiet", size: 12.5 },
  });
  const completed = (layout) => ({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, dragmode: false,
    hovermode: "closest", legend: { orientation: "h", traceorder: "normal", x: 0, y: 1.02, yanchor: "bottom" },
    hoverlabel: { bgcolor: "$card", bordercolor: "$line", font: { color: "$ink", size: 13 } },
    ...layout,
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: "$ink" },
    margin: { l: 54, r: 18, t: 14, b: 44, ...layout.margin },
    xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
  });
  const config = { responsive: true, displayModeBar: false, showTips: false };

  let theme = 0;
  const draw = (panel) => {
    for (const place of panel.querySelectorAll(".plot")) {
      if (place.dataset.theme === String(theme)) continue;
      place.dataset.theme = String(theme);
      const style = getComputedStyle(root);
      const { data, layout } = values[place.dataset.figure];
      Plotly.react(place, filled(data, style), filled(completed(layout), style), config)
        .then(() => { place.dataset.drawn = "true"; });
    }
  };

  const current = () => tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true");
  const select = (chosen, focus) => {
    tabs.forEach((tab, place) => {
      tab.setAttribute("aria-selected", String(place === chosen));
      tab.tabIndex = place === chosen ? 0 : -1;
      panels[place].hidden = place !== chosen;
    });
    if (focus) tabs[chosen].focus({ preventScroll: true });
    const list = tabs[chosen].parentElement;
    list.scrollLeft = tabs[chosen].offsetLeft - list.offsetLeft - 40;
    draw(panels[chosen]);
    panels[chosen].querySelectorAll(".plot").forEach((place) => Plotly.Plots.resize(place));
  };
  const keys = { ArrowRight: (at) => at + 1, ArrowLeft: (at) => at - 1, Home: () => 0, End: () => tabs.length - 1 };
  tabs.forEach((tab, place) => {
    tab.addEventListener("click", () => { select(place); history.replaceState(null, "", `#${panels[place].id}`); });
    tab.addEventListener("keydown", (event) => {
      const go = keys[event.key];
      if (!go) return;
      event.preventDefault();
      select((go(place) + tabs.length) % tabs.length, true);
    });
  });

  const button = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const recolour = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-pressed", String(isDark()));
    button.setAttribute("aria-label", isDark() ? "Switch to light colours" : "Switch to dark colours");
    theme += 1;
    draw(panels[current()]);
  };
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; recolour(); });
  system.addEventListener("change", recolour);

  document.querySelectorAll("[data-save]").forEach((save) => save.addEventListener("click", () => {
    const place = document.getElementById(`plot-${save.dataset.save}`);
    const { offsetWidth: width, offsetHeight: height } = place;
    Plotly.downloadImage(place, { format: "png", filename: save.dataset.save, scale: 2, width, height });
  }));

  document.querySelectorAll("[data-find]").forEach((field) => {
    const rows = [...document.querySelectorAll(`#${field.dataset.find}-rows tr`)];
    field.addEventListener("input", () => {
      const wanted = field.value.toLowerCase();
      rows.forEach((row) => { row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted); });
    });
  });
  document.querySelectorAll("[data-download]").forEach((save) => save.addEventListener("click", () => {
    // A spreadsheet would read a name that begins like this as a formula (settings.csv_cell does the same).
    const formula = (text) => /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text));
    const cell = (text) => `"${formula(text) ? "'" : ""}${text.replaceAll('"', '""')}"`;
    const lines = [...document.querySelectorAll(`#${save.dataset.download}-table tr`)]
      .map((row) => [...row.cells].map((one) => cell(one.textContent)).join(","));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines.join("\r\n")], { type: "text/csv" }));
    link.download = `${save.dataset.download}.csv`;
    link.click();
    URL.revokeObjectURL(link.href);
  }));
  // On paper all tabs are open, and figures are as wide as a page: drawn for the screen, their right ends would be cut.
  const fit = (panel) => panel.querySelectorAll(".plot").forEach((place) => Plotly.Plots.resize(place));
  addEventListener("beforeprint", () => {
    root.classList.add("printing");
    panels.forEach((panel) => { panel.hidden = false; draw(panel); fit(panel); });
  });
  addEventListener("afterprint", () => { root.classList.remove("printing"); select(current()); });

  const named = panels.findIndex((panel) => `#${panel.id}` === location.hash);
  recolour();
  select(Math.max(0, named));
})();
