/* Opens the playground in headless Chromium, uses it, and prints what it shows as JSON.
   node drive.mjs PAGE CHROMIUM FOLDER; playwright-core is found by NODE_PATH. */
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const { chromium } = createRequire(process.env.NODE_PATH + "/")("playwright-core");
const [page_path, executablePath, folder] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const shown = { errors: [], requests: [] };

async function open(viewport, more = {}) {
  const page = await browser.newPage({ viewport, ...more });
  page.on("console", message => message.type() === "error" && shown.errors.push(message.text()));
  page.on("pageerror", error => shown.errors.push(String(error)));
  page.on("request", request => /^(file|data):/.test(request.url()) || shown.requests.push(request.url()));
  await page.goto(pathToFileURL(page_path).href);
  return page;
}

/* The problem as the page has it, and the answer that it shows. */
const read = page => page.evaluate(() => {
  const { rows, w, norm, metric } = solve();
  const number = name => Number(document.getElementById("value").dataset[name]);
  return {
    f: world.f, w, metric, norm: String(norm), multipliers: document.getElementById("multipliers").dataset.all, search: Number(document.getElementById("search").value), A: rows.map(row => row.a), b: rows.map(row => row.high),
    value: [number("x"), number("y")], status: document.getElementById("status").textContent,
    certificate: document.getElementById("certificate").textContent,
    cone: document.querySelectorAll('[data-name="tangent cone"]').length,
    candidates: document.getElementById("candidates").rows.length,
    best: document.querySelector("#candidates .best td:nth-child(2)")?.textContent ?? null, shown: pair([number("x"), number("y")]),
  };
});

async function drag(page, name, dx, dy) {
  const box = await page.locator(`[data-name="${name}"]`).boundingBox();
  const x = box.x + box.width / 2, y = box.y + box.height / 2;
  await page.mouse.move(x, y);
  await page.mouse.down();
  await page.mouse.move(x + dx / 2, y + dy / 2);
  await page.mouse.move(x + dx, y + dy);
  await page.mouse.up();
}

const page = await open({ width: 1100, height: 800 });
shown.views = [await read(page)];
await page.check("#with-w");
shown.views.push(await read(page));
for (const [name, dx, dy] of [["f", -150, 90], ["w", 60, 80], ["row 1", -40, 30], ["normal of row 2", 30, -60], ["f", 40, 40]]) {
  await drag(page, name, dx, dy);
  shown.views.push(await read(page));
}
for (const norm of ["1", "Infinity", "2"]) {
  await page.selectOption("#norm", norm);
  shown.views.push(await read(page));
}
await page.selectOption("#search", "2");
shown.views.push(await read(page));
await page.check("#with-metric");
shown.views.push(await read(page));
await page.uncheck("#with-w");
shown.views.push(await read(page));
await page.locator("#stretch").fill("4.5");
await page.locator("#turn").fill("120");
shown.views.push(await read(page));
await page.screenshot({ path: `${folder}/metric.png` });
await page.uncheck("#with-metric");
shown.views.push(await read(page));
const before = (await read(page)).f;
await page.focus('[data-name="f"]');
await page.keyboard.press("ArrowRight");
await page.keyboard.press("Shift+ArrowUp");
shown.keys = [before, (await read(page)).f];
await page.click("#add");
shown.views.push(await read(page));
await page.screenshot({ path: `${folder}/set.png` });
await page.click("#empty");
shown.views.push(await read(page));
await page.screenshot({ path: `${folder}/empty.png` });

await page.click("#tab-drive");
shown.drive = await page.evaluate(() => {
  const run = filter => {
    document.getElementById("filter").checked = filter;
    park();
    let smallest = Infinity, inside = false;
    const seen = [];
    for (let k = 0; k < 1500; k++) {
      const now = control(track.state);
      if (k % 25 === 0) seen.push({ u: now.nominal, A: now.rows.map(r => r.a), low: now.rows.map(r => r.low ?? null), high: now.rows.map(r => r.high), value: now.answer.value, status: now.answer.status });
      smallest = Math.min(smallest, ...barriers(track.state).map(b => b.h));
      inside ||= track.circles.some(({ c, r }) => Math.hypot(...add(guarded(track.state), c, -1)) < r - 1e-3);
      step();
    }
    renderField();
    return { smallest, inside, far: Math.hypot(...nominal(track.state)), seen };
  };
  return { off: run(false), on: run(true) };
});
await page.screenshot({ path: `${folder}/drive.png` });
await page.click("#back");
await page.click("#go");
await page.waitForFunction(() => track.path.length > 10);
await page.close();

const phone = await open({ width: 390, height: 844 }, { hasTouch: true, isMobile: true, deviceScaleFactor: 2 });
shown.phone = await phone.evaluate(() => ({ width: document.documentElement.scrollWidth, view: innerWidth }));
await phone.screenshot({ path: `${folder}/phone.png`, fullPage: true });
await browser.close();
console.log(JSON.stringify(shown));
