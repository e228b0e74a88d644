// Shows the document that the page holds. No search: it would run in a worker made of a blob, which the policy forbids.
"use strict";

const held = document.getElementById("document");
Redoc.init(
  JSON.parse(held.textContent),
  { disableSearch: true, expandResponses: "200,202", jsonSamplesExpandLevel: 3, nonce: held.nonce, sanitize: true },
  document.getElementById("page"),
);
