// The pages, in the order of the navigation. Each file exports a component `Page`. Its `rest` is the list of parts after
// the page's name in the address (`#/runs/abc` is the page "runs" with ["abc"]).
export const PAGES = [
  { name: "approvals", title: "Approvals", load: () => import("./pages/approvals.js") },
  { name: "runs", title: "Runs and sessions", load: () => import("./pages/runs.js") },
  { name: "crossings", title: "Crossings and policy", load: () => import("./pages/crossings.js") },
  { name: "record", title: "Record", load: () => import("./pages/record.js") },
  { name: "health", title: "Health", load: () => import("./pages/health.js") },
];
