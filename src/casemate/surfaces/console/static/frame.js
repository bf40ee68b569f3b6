// Shows a program's HTML in a separate origin, which may fetch nothing and runs only this script.
// It removes addresses too: a browser may resolve the host name of a link before anyone clicks it.
"use strict";
const HTML = `a abbr article aside b blockquote br caption center cite code col colgroup dd del details dfn div dl dt em
  figcaption figure font footer h1 h2 h3 h4 h5 h6 header hr i img ins kbd li main mark ol p pre q s samp section small span
  strong style sub summary sup table tbody td tfoot th thead time tr tt u ul var wbr`;
const SVG = `svg g path rect circle ellipse line polyline polygon text tspan defs lineargradient radialgradient stop
  clippath title desc marker`;
const KEPT = new Set(`${HTML} ${SVG}`.split(/\s+/));
const ADDRESSES = new Set(`href src srcset action formaction poster background ping cite data longdesc usemap manifest
  target srcdoc http-equiv name`.split(/\s+/));
const PICTURE = /^data:image\/(png|jpeg|gif|webp|svg\+xml)[;,]/i;

function clean(node) {
  for (const child of [...node.children]) {
    if (!KEPT.has(child.localName.toLowerCase())) {
      child.remove();
      continue;
    }
    for (const { name, localName, value } of [...child.attributes]) {
      const isPicture = child.localName === "img" && name === "src" && PICTURE.test(value);
      const isAddress = ADDRESSES.has(localName.toLowerCase()) && !isPicture;
      if (/^on/i.test(name) || name.includes(":") || isAddress) child.removeAttribute(name);
    }
    clean(child);
  }
}

addEventListener("message", (event) => {
  if (event.source !== parent || typeof event.data?.html !== "string") return;
  const given = new DOMParser().parseFromString(event.data.html, "text/html");
  for (const part of [given.head, given.body]) clean(part);
  const kept = [...given.head.querySelectorAll("style"), ...given.body.childNodes];
  document.body.replaceChildren(...kept.map((node) => document.adoptNode(node)));
  const tell = () => parent.postMessage({ height: Math.ceil(document.body.getBoundingClientRect().bottom) + 6 }, "*");
  new ResizeObserver(tell).observe(document.body);
  tell();
});
