// Shows the document that the page holds. No search: it would run in a worker made of a blob, which the policy forbids.
"use strict";

const held = document.getElementById("document");
Redoc.init(
  JSON.parse(held.textContent),
  { disableSearch: true, nonce: held.nonce, sanitize: true, jsonSamplesExpandLevel: 3 },
  document.getElementById("page"),
);
