// A program's results, shown by MIME type. A picture's first bytes must have a known signature. HTML goes into a frame of
// an opaque origin (frame.html), which runs none of the program's scripts and fetches nothing.
import { Do, Json, html, save, size, useEffect, useRef, useState, visible } from "./ui.js";
import { styled } from "./live.js";

const MAGIC = {
  "image/png": [[0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]],
  "image/jpeg": [[0xff, 0xd8, 0xff]],
  "image/gif": [[0x47, 0x49, 0x46, 0x38]],
  "image/webp": [[0x52, 0x49, 0x46, 0x46]],
};
const MOST_TEXT = 200_000; // characters shown of a text
const MOST_HTML = 4 << 20;
const MOST_SILENCE = 2000; // ms
// A bundle's first type in this order is shown; the others can be chosen.
const ORDER = [
  ...Object.keys(MAGIC), "image/svg+xml", "text/html", "application/json", "text/latex", "text/markdown", "text/plain",
];

/** The type of a picture by its first bytes; empty for any other type. */
export function pictureType(bytes) {
  const begins = (magic) => magic.every((byte, at) => bytes[at] === byte);
  return Object.keys(MAGIC).find((type) => MAGIC[type].some(begins)) ?? "";
}

/** A picture, with the type that its bytes have. */
export function Picture({ bytes, name }) {
  const type = pictureType(bytes);
  const [address, set] = useState("");
  useEffect(() => {
    if (!type) return;
    const made = URL.createObjectURL(new Blob([bytes], { type }));
    set(made);
    return () => URL.revokeObjectURL(made);
  }, [bytes]);
  if (!type) return html`<p class="empty">no picture of a known type</p>`;
  return address && html`<img class="picture" src=${address} alt=${visible(name)} />`;
}

function bytesOf(base64) {
  try {
    return Uint8Array.from(atob(String(base64).replace(/\s/g, "")), (one) => one.charCodeAt(0));
  } catch {
    return new Uint8Array();
  }
}

/** SVG in an `img`, which runs no scripts and fetches nothing (SVG 2, section 2.2, secure static mode). */
function Svg({ text }) {
  const address = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(String(text).toWellFormed())}`;
  return html`<img class="picture" src=${address} alt="A drawing of the program's" />`;
}

/** Shows `instead` if the frame does not report its height in time. */
function Frame({ text, instead }) {
  const own = useRef(null);
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), MOST_SILENCE);
    const hear = ({ source, data }) => {
      if (source !== own.current?.contentWindow || !Number.isFinite(data?.height)) return;
      clearTimeout(timer);
      setLate(false);
      own.current.style.height = `${Math.min(Math.max(data.height, 24), 640)}px`;
    };
    addEventListener("message", hear);
    return () => {
      clearTimeout(timer);
      removeEventListener("message", hear);
    };
  }, []);
  const give = () => own.current.contentWindow.postMessage({ html: String(text).slice(0, MOST_HTML) }, "*");
  return html`${isLate && html`<${Text} text=${instead} />`}
    <iframe class=${isLate ? "given late" : "given"} ref=${own} sandbox="allow-scripts" referrerpolicy="no-referrer"
      title="What the program gave as HTML" src="frame.html" onLoad=${give}></iframe>`;
}

export function Text({ text }) {
  const whole = String(text);
  const pieces = styled(whole.slice(0, MOST_TEXT), {});
  const shown = pieces.map(([piece, style]) => (style ? html`<span class=${style}>${visible(piece)}</span>` : visible(piece)));
  return html`<pre tabindex="0">${shown}${whole.length > MOST_TEXT ? `\n… ${whole.length - MOST_TEXT} more characters` : ""}</pre>`;
}

/** Content that a browser would open in a separate page is only offered as a download. */
function Fetched({ type, bytes }) {
  const fetch = () => save(new Blob([bytes], { type: "application/octet-stream" }), `result.${type.split("/").at(-1)}`);
  return html`<${Do} onClick=${fetch}>Download ${type}, ${size(bytes.length)}</${Do}>`;
}

function One({ type, data, bundle }) {
  if (type in MAGIC) return html`<${Picture} bytes=${bytesOf(data)} name="A picture of the program's" />`;
  if (type === "image/svg+xml") return html`<${Svg} text=${data} />`;
  if (type === "text/html") return html`<${Frame} text=${data} instead=${bundle["text/plain"] ?? data} />`;
  if (/^application\/([\w.-]+\+)?json$/.test(type)) return html`<${Json} value=${data} open=${true} />`;
  if (type === "application/pdf") return html`<${Fetched} type=${type} bytes=${bytesOf(data)} />`;
  if (typeof data === "string") return html`<${Text} text=${data} />`;
  return html`<${Json} value=${data} />`;
}

/** One displayed object: a mapping of MIME types to data. */
export function Result({ bundle }) {
  const types = Object.keys(bundle).sort((one, other) => rank(one) - rank(other));
  const [chosen, choose] = useState(null);
  const type = types.includes(chosen) ? chosen : types[0];
  if (!type) return html`<p class="empty">nothing that can be shown</p>`;
  return html`<div class="result">
    ${types.length > 1 ? html`<select aria-label="Show it as" value=${type} onChange=${(event) => choose(event.target.value)}>
      ${types.map((one) => html`<option value=${one}>${visible(one)}</option>`)}</select>` : null}
    <${One} key=${type} type=${type} data=${bundle[type]} bundle=${bundle} />
  </div>`;
}

const rank = (type) => (ORDER.includes(type) ? ORDER.indexOf(type) : ORDER.length);
