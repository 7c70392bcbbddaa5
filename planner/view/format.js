// Numbers, names and colours as people read them.

const OKABE_ITO = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#f0e442", "#999999"];
const GOLDEN_ANGLE = 137.508; // hues that are far from all earlier ones

/** Thousands set apart: 1234567 is "1,234,567". By hand, for engines without languages. */
function grouped(value) {
  const [whole, rest] = String(value).split(".");
  const parts = whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  return rest === undefined ? parts : `${parts}.${rest}`;
}

/** Three significant digits, without an exponent: 1234.5 is "1,230", 0.01234 is "0.0123". */
function digits(value) {
  const rounded = Number(value.toPrecision(3));
  const size = rounded === 0 ? 0 : Math.floor(Math.log10(Math.abs(rounded)) + 1e-9);
  return grouped(Number.isInteger(rounded) ? rounded : Number(rounded.toFixed(Math.max(0, 2 - size))));
}

/** In the largest unit of which there is one, also but for rounding: 1 GiB comes as 1,073,740,000 bytes. */
function scaled(value, base, units) {
  const isOne = (figures) => Number(value.toPrecision(figures)) >= base;
  let i = 0;
  while (i + 1 < units.length && (isOne(3) || isOne(4))) {
    value /= base;
    i += 1;
  }
  return `${digits(value)} ${units[i]}`;
}

function formatSeconds(seconds) {
  if (seconds === null) return "cannot run";
  return seconds === 0 ? "0 s" : scaled(seconds * 1e9, 1000, ["ns", "µs", "ms", "s"]);
}

function formatBytes(bytes) {
  return bytes === null ? "unlimited" : scaled(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
}

/** A share of 1 in percent; small ones keep a digit. */
function formatShare(share) {
  const percent = share * 100;
  if (percent > 0 && percent < 0.1) return "< 0.1 %";
  return `${grouped(Number(percent.toFixed(percent < 10 ? 1 : 0)))} %`;
}

/** What comes last in a path: "17" of "layers.17". */
function lastPart(path) {
  return path.split(".").at(-1);
}

function plural(count, noun) {
  return `${grouped(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** "aten.conv2d.default" is "conv2d", "mylib.op.default" is "mylib.op". */
function shortKind(kind) {
  const parts = kind.split(".");
  if (parts.length === 3) parts.pop();
  return parts.length > 1 && parts[0] === "aten" ? parts.slice(1).join(".") : parts.join(".");
}

const UNUSED = "#8a8f98";
const FEW_DEVICES = 12; // more have colours by their position in the pipeline, and numbers
let palette = { colours: [], letters: [] }; // of the devices

/** Letters and colours that differ as much as they can; of many devices, numbers, and a colour that says how far along. */
function choosePalette({ devices, ops }) {
  const many = devices.length > FEW_DEVICES;
  const numbers = devices.map((device) => device.name.match(/\d+$/)?.[0]);
  const unique = new Set(numbers).size === devices.length && !numbers.includes(undefined);
  const letters = devices.map((_, d) => (many ? (unique ? numbers[d] : String(d)) : String.fromCharCode(65 + d)));
  const first = new Map(); // by device, the first operator of it in its copy
  (ops.homes ?? ops.device.map((device) => [device])).forEach((homes, op) => {
    for (const device of homes) if (!first.has(device)) first.set(device, op);
  });
  const steps = [...new Set(first.values())].sort((a, b) => a - b);
  const colours = devices.map((_, d) => {
    if (!many) return OKABE_ITO[d] ?? hslToHex((20 + (d - OKABE_ITO.length) * GOLDEN_ANGLE) % 360, 0.5, d % 2 ? 0.66 : 0.4);
    if (!first.has(d)) return UNUSED;
    const step = steps.indexOf(first.get(d));
    return hslToHex(265 - (250 * step) / Math.max(1, steps.length - 1), 0.58, step % 2 ? 0.62 : 0.44);
  });
  palette = { colours, letters };
}

/** Stands wherever a device's colour stands. */
function deviceLetter(index) {
  return palette.letters[index];
}

/** Colours that stay apart for colour-blind eyes; from the ninth on generated ones, dark and light in turn. */
function deviceColour(index) {
  return palette.colours[index];
}

function hslToHex(hue, saturation, lightness) {
  const channel = (n) => {
    const k = (n + hue / 30) % 12;
    const value = lightness - saturation * Math.min(lightness, 1 - lightness) * Math.max(-1, Math.min(k - 3, 9 - k, 1));
    return Math.round(value * 255).toString(16).padStart(2, "0");
  };
  return `#${channel(0)}${channel(8)}${channel(4)}`;
}

/** Black or white, whichever stands out more from a colour (WCAG relative luminance). */
function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((i) => {
    const c = parseInt(colour.slice(i, i + 2), 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.22 ? "#000" : "#fff";
}

/** Widths of the signs from the blank to the tilde in DejaVu Sans Bold, the widest of the usual fonts: "!" is 0 em. */
const WIDTHS = "38;KDSM188;K4644DDDDDDDDDD55KKK>SHGFKCCJK44HASKLFLHECJHXHEF848K::CE?EC7EE22C2UEDEE:?9EBOBB>E4EK";
const WIDTH_STEP = 0.02; // em
const OTHER_WIDTHS = [[0x2e80, 1], [0x2026, 1], [0x80, 0.86]]; // em, from this sign on

/** How wide a text is at most. */
function textWidth(text, size) {
  const em = (code) => {
    if (code < 127) return WIDTH_STEP * (WIDTHS.charCodeAt(Math.max(0, code - 32)) - 33);
    return OTHER_WIDTHS.find(([from]) => code >= from)?.[1] ?? 1;
  };
  return size * [...text].reduce((sum, sign) => sum + em(sign.codePointAt(0)), 0);
}

function escapeHtml(text) {
  return String(text).replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
}

/** An element as text. The attributes are escaped, the inside is not. */
function element(tag, attributes, inside = "") {
  const written = Object.entries(attributes).map(([name, value]) => ` ${name}="${escapeHtml(value)}"`);
  return `<${tag}${written.join("")}>${inside}</${tag}>`;
}

/** The variables of a device in a style: its colour and what is readable on it. */
function deviceStyle(device) {
  const colour = deviceColour(device);
  return `--d:${colour};--on:${inkOn(colour)}`;
}

/** A device's letter on its colour. */
function badge(device) {
  return element("span", { class: "badge", style: deviceStyle(device) }, deviceLetter(device));
}

function byId(id) {
  return document.getElementById(id);
}
