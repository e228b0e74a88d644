// Shows the document that the page contains. Search is off: it needs a web worker made from a blob, which the policy
// forbids.
"use strict";

const embedded = document.getElementById("document");
Redoc.init(
  JSON.parse(embedded.textContent),
  { disableSearch: true, expandResponses: "200,202", jsonSamplesExpandLevel: 3, nonce: embedded.nonce, sanitize: true },
  document.getElementById("page"),
);
