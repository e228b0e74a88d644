"""A stand-in for llama-server: the fields of its answers, over rows that are known beforehand.

The names and the omissions are llama-server's (tools/server/server-task.cpp, process_token in server-context.cpp).
test_outside_peer.py checks that the real one says the same.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.compare import logsumexp
from tests.loopback import LoopbackServer, QuietHandler

Rows = Mapping[tuple[int, ...], NDArray[np.float32]]
"""A prompt's tokens → the logits of the next token."""
JSON = dict[str, Any]


class LlamaServerStandIn(LoopbackServer):
    """`with LlamaServerStandIn(rows, pieces, letter) as server: server.url`.

    `pieces` are every token's bytes. Every text is tokenised as `letter`.
    """

    def __init__(self, rows: Rows, pieces: Sequence[bytes], letter: int) -> None:
        answers = _Answers(rows, pieces, letter)

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                self._answer({})

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

            def _answer(self, body: JSON) -> None:
                answer = answers.of(self.path, body)
                self.send_response(200 if answer else 404)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

        super().__init__(Handler)


class _Answers:
    def __init__(self, rows: Rows, pieces: Sequence[bytes], letter: int) -> None:
        self._rows, self._pieces, self._letter = rows, pieces, letter

    def of(self, path: str, body: JSON) -> JSON:
        """The answer; empty if there is no such route."""
        match path:
            case "/props":
                return {"build_info": "b7-stand-in", "model_path": "/models/shallow.gguf", "total_slots": 1}
            case "/v1/models":
                return {"data": [{"id": "shallow", "meta": {"n_vocab": len(self._pieces), "size": 7}}]}
            case "/tokenize":
                return {"tokens": [self._letter]}
            case "/detokenize":
                text = b"".join(self._pieces[token] for token in body["tokens"])
                return {"content": text.decode(errors="replace")}
            case "/completion":
                return self._completion(body)
            case _:
                return {}

    def _completion(self, body: JSON) -> JSON:
        tokens: list[int] = []
        reported: list[JSON] = []
        for _ in range(body["n_predict"]):
            row = self._rows[(*body["prompt"], *tokens)]
            biased = row.copy()
            for token, bias in body.get("logit_bias", ()):
                biased[token] += bias
            tokens.append(int(biased.argmax()))
            # A token that ends inside a character is not reported.
            if body.get("n_probs") and self._is_whole(tokens[-1]):
                reported.append(self._reported(row, tokens[-1], body["n_probs"]))
        return {"content": "", "tokens": tokens, **({"completion_probabilities": reported} if reported else {})}

    def _is_whole(self, token: int) -> bool:
        try:
            self._pieces[token].decode()
        except UnicodeDecodeError:
            return False
        return True

    def _reported(self, row: NDArray[np.float32], token: int, n_probs: int) -> JSON:
        logprobs = row.astype(np.float64) - logsumexp(row)
        top = np.argsort(-logprobs, kind="stable")[:n_probs]
        listed = [{"id": int(one), "logprob": float(logprobs[one])} for one in top]
        return {"id": token, "logprob": float(logprobs[token]), "top_logprobs": listed}
