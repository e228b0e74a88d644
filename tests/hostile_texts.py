"""Texts that a model might write to take over the page. Each would set `window.owned` or ask for /owned."""

_RUN = "window.owned=1"

_MARKUP = (
    f"<script>{_RUN}</script>",
    f"<img src=x onerror={_RUN}>",
    f"<svg onload={_RUN}><script>{_RUN}</script></svg>",
    f"<svg><animate onbegin={_RUN} attributeName=x dur=1s>",
    f'<iframe srcdoc="<script>parent.{_RUN}</script>"></iframe>',
    f'<iframe src="javascript:parent.{_RUN}"></iframe>',
    f'<a href="javascript:{_RUN}">here</a>',
    f"<body onload={_RUN}>",
    f"<details open ontoggle={_RUN}>",
    f"<input autofocus onfocus={_RUN}>",
    f"<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror={_RUN}&gt;'>",
    f"<noscript><p title='</noscript><img src=x onerror={_RUN}>'>",
    f"<template><img src=x onerror={_RUN}></template>",
    "<style>@import '/owned.css'; body { background: url(/owned.png) }</style>",
    '<link rel=stylesheet href="/owned.css">',
    '<base href="/owned/">',
    '<meta http-equiv="refresh" content="0;url=/owned">',
    '<form action="/owned"><button autofocus>ok</button></form>',
    "<object data=/owned></object><embed src=/owned>",
    "<plaintext>",
    "--></script></textarea></title></style>",
    rf"\u003cscript\u003e{_RUN}\u003c/script\u003e &lt;script&gt;{_RUN}&lt;/script&gt;",
)

_MARKDOWN = (
    f"[here](javascript:{_RUN})",
    f"[here](  javascript:{_RUN}  )",
    f"[here](JaVaScRiPt:{_RUN})",
    f"[here](data:text/html,<script>{_RUN}</script>)",
    f'[here](https://example.invalid/" onclick="{_RUN})',
    f"[here](https://example.invalid/'onmouseover='{_RUN})",
    "![picture](/owned.png)",
    "![picture](https://example.invalid/owned.png)",
    "[![picture](/owned.png)](https://example.invalid/)",
    f"<javascript:{_RUN}>",
    f"`<img src=x onerror={_RUN}>`",
    f'```html"><img src=x onerror={_RUN}>\n<img src=x onerror={_RUN}>\n```',
    f"# <img src=x onerror={_RUN}>",
    f"- <img src=x onerror={_RUN}>",
    f"> <img src=x onerror={_RUN}>",
    f"| <img src=x onerror={_RUN}> | a |\n|---|---|\n| <svg onload={_RUN}> | b |",
    f"**<img src=x onerror={_RUN}>** _<svg onload={_RUN}>_ ~~<b onclick={_RUN}>~~",
    "[__proto__](https://example.invalid/__proto__) constructor toString",
)

TEXTS = (*_MARKUP, *_MARKDOWN)

PATIENCE = (
    *("*" * 50_000, "**a " * 20_000, "`" * 50_000, "` a" * 20_000, "_a " * 20_000, "~~a" * 20_000, "[" * 50_000),
    *("[a](" * 20_000, "http://" * 10_000, "> " * 20_000, "| " * 20_000, "# " + " " * 50_000 + "x", "- " * 20_000),
    *("\n".join(" " * n + "- a" for n in range(500)), "```" + "a" * 50_000 + "`", "\\" * 50_000, "- - -\n" * 5_000),
)
"""Texts that make a careless pattern or a recursion take for ever."""
