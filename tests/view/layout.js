// Looks at a page that is drawn: what is cut, and what lies over something else, in each tab.
const root = document.documentElement, wrong = new Set();
const seen = (e) => e.offsetParent !== null && e.clientWidth;
function apart(list) {
  const boxes = [...list].filter(seen).map((e) => [e.getBoundingClientRect(), e.id || e.textContent]);
  boxes.forEach(([a, one], i) => boxes.slice(i + 1).forEach(([b, other]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 1) wrong.add(`over each other: ${one} | ${other}`);
  }));
}
// Labels and turns in the lists may end in dots: a title or a click shows the whole.
const WHOLE = "h1, h2, h3, th, td, label, summary, .head, .badge, .facts span, .card, .copy, " +
  "#tabs, #tools, #legend span, #metrics span, #listhead > span";
const PARENTS = "#head, #names, #metrics, #tools, #bar, #tabs, #listhead, #labels, main, #below, .facts";
for (const tab of ["turn", "attempt", "task"]) {
  document.querySelector(`[data-tab=${tab}]`).click();
  if (root.scrollWidth > innerWidth) wrong.add(`wider than the window: ${root.scrollWidth} px`);
  for (const e of document.querySelectorAll(WHOLE))
    if (seen(e) && e.scrollWidth > e.clientWidth + 1) wrong.add("cut: " + (e.id || e.textContent));
  for (const parent of document.querySelectorAll(PARENTS)) apart(parent.children);
}
const numbers = [...document.querySelectorAll("#tree > text:not(.mark)")];
const boxes = numbers.map((e) => e.getBoundingClientRect());
boxes.slice(1).forEach((b, i) => { if (b.left < boxes[i].right) wrong.add("turns on the ruler"); });
root.dataset.wrong = [...wrong].join("; ");
