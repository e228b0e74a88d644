"""The near law: an answer is the one alone up to a near-tie, and its numbers are within parity's bounds.

Owns what is near; the bounds are parity's, for files of a type (parity/bounds.toml). Refuses to know how an answer
arrived. Pure.

Two answers to one request have the same text before each token that they share, so both list that token from the same
computation, and so they do for the first token in which they part. There the listed numbers must agree, and the other
token must be one that numbers so near could have drawn. After it the answers have other texts, and only their form is
judged (forms.py).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import exp, inf
from typing import Any, NamedTuple

from msgspec.structs import replace

from parity.bounds import Bounds
from tools.fire.answers import OK, Answer, differences, excesses
from tools.fire.asks import CHAT, EXECUTE, SAMPLING_FIELDS, Ask, Json
from tools.fire.forms import flaws
from tools.fire.listed import BAN, N_DRAWN, N_TOP, has_list
from tools.fire.models import MARKS, Name
from worker.sampling.sample import GREEDY_BELOW, uniform

_KIND = {True: "F16_cpu", False: "F16_ggml_cpu"}
"""The small models' matrices are F16 under this law. False: on a processor without the worker's own kernels."""
_DEFAULT_KIND = {True: "Q4_1_cpu", False: "other"}
_N_UNLISTED = 4
"""Tokens that an answer may have drawn and not listed before it ended: a stop's, or the bytes of half a character."""
_MAX_UNLISTED_SHARE_IN_GGML = 0.5
"""ggml's own attention moves numbers ten times as far: 10 of 36 parted."""
_MIN_UNLISTED = 3
_SHIFTS = frozenset({"repetition_penalty", "frequency_penalty", "presence_penalty", "dry_multiplier"})
_CONSTRAINTS = frozenset({"regex", "grammar", "json_schema", "response_format", "structured_outputs", "guided_regex"})


class Limits(NamedTuple):
    """The allowed differences of an answer under load from the one alone."""

    gap: float
    """Between two log-probabilities, in nats."""
    draw: float
    """Between a draw's number and the share of the other token."""
    parted: float = 0.1
    """The share of the requests without a list that may part."""

    @classmethod
    def of(cls, model: Name, *, has_own_kernels: bool) -> "Limits":
        bounds, kind = Bounds.load(), (_DEFAULT_KIND if model == "default" else _KIND)[has_own_kernels]
        gap, draw = (
            bounds.bound(f"serving.{name}.{kind}", f"serving.{name}.other").value for name in ("beside", "beside_draw")
        )
        return cls(gap, draw) if has_own_kernels else cls(gap, draw, _MAX_UNLISTED_SHARE_IN_GGML)


class Row(NamedTuple):
    """A token of an answer, with those that were most probable in its place."""

    name: str
    """The id, or the text and the bytes if the route reports no ids."""
    logprob: float
    top: dict[str, float]
    """Best first."""

    @property
    def all(self) -> dict[str, float]:
        return {**self.top, self.name: self.logprob}


Rows = dict[str, list[Row]]
"""The tokens by the number of the choice."""


class Near:
    """The near law for the answers of one run. It counts what it meets."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.counts: Counter[str] = Counter()
        self._unlisted: set[str] = set()
        self._unlisted_parted: set[str] = set()
        """Digests: a request that parts does so each time that it is repeated."""

    # ── the law's three questions ────────────────────────────────────────────────────────────────

    def differences(self, ask: Ask, answer: Answer, alone: Answer) -> list[str]:
        """The parts in which a complete answer differs from the one alone by more than the law allows."""
        if not answer.status == alone.status == OK or alone.error:
            return differences(answer, alone)
        if not _is_listed(ask):
            return self._judged_by_form(ask, answer, alone)
        found, n_parted = self._compared(ask, answer, alone, are_whole=(True, True))
        if found:
            return found
        rest, rest_alone = _without_rows(answer), _without_rows(alone)
        if not n_parted and not differences(rest, rest_alone):
            self.counts["listed answers equal in their tokens"] += 1
            return []
        if not n_parted:
            self.counts["partings that no list shows"] += 1
        return flaws(ask, answer, alone)

    def excesses(self, ask: Ask, answer: Answer, alone: Answer) -> list[str]:
        """The parts of an answer that broke off which the one alone does not begin with, or nearly so."""
        if not _is_listed(ask):
            return []
        found, n_parted = self._compared(ask, answer, alone, are_whole=(True, False))
        return found if found or n_parted else excesses(_without_rows(answer), _without_rows(alone))

    def clashes(self, ask: Ask, answer: Answer, alone: Answer) -> list[str]:
        """The same for two answers that broke off, of which neither need be the longer one."""
        if not _is_listed(ask):
            return []
        return self._compared(ask, answer, alone, are_whole=(False, False))[0]

    def of_all(self) -> list[str]:
        """The faults that only many answers show: those without a list part seldom."""
        n_parted, n = len(self._unlisted_parted), len(self._unlisted)
        most = max(_MIN_UNLISTED, self._limits.parted * n)
        return [f"{n_parted} of {n} requests without a list part; at most {most:g}"] if n_parted > most else []

    # ── one answer ───────────────────────────────────────────────────────────────────────────────

    def _judged_by_form(self, ask: Ask, answer: Answer, alone: Answer) -> list[str]:
        self._unlisted.add(ask.digest)
        self.counts["answers without a list"] += 1
        if not differences(_without_rows(answer), _without_rows(alone)):
            return []
        self._unlisted_parted.add(ask.digest)
        self.counts["answers without a list that parted"] += 1
        return flaws(ask, answer, alone)

    def _compared(
        self, ask: Ask, answer: Answer, alone: Answer, *, are_whole: tuple[bool, bool]
    ) -> tuple[list[str], int]:
        """The faults in the lists, and the number of choices that part at a near-tie. `are_whole`: the one alone, and
        the other."""
        mine, yours = rows_of(ask, alone), rows_of(ask, answer)
        found, n_parted = [*_prompt_clashes(answer, alone, self._limits.gap)], 0
        for choice in mine.keys() | yours.keys():
            pair = mine.get(choice, []), yours.get(choice, [])
            seed = ask.body["seed"] + int(choice) % ask.body.get("n", 1)
            fault, has_parted = self._walked(ask, seed, *pair, are_whole)
            found += [f"{choice}: {fault}"] if fault else []
            n_parted += has_parted
        return found, n_parted

    def _walked(
        self, ask: Ask, seed: int, alone: Sequence[Row], rows: Sequence[Row], are_whole: tuple[bool, bool]
    ) -> tuple[str, bool]:
        for at, (mine, yours) in enumerate(zip(alone, rows, strict=False)):
            self.counts["tokens compared"] += 1
            self.counts["of them with other numbers"] += mine != yours
            if clash := self._row_clash(mine, yours):
                return f"token {at}: {clash}", False
            if mine.name != yours.name:
                return self._judged(ask, _Parting(seed, at, alone[at:], rows[at:]))
        at = min(len(alone), len(rows))
        if (are_whole[0] and len(rows) > at) or (are_whole[1] and len(alone) > at):
            return self._judged(ask, _Parting(seed, at, alone[at:], rows[at:]))
        return "", False

    def _row_clash(self, mine: Row, yours: Row) -> str:
        """The first number of a row that is too far from the other row's."""
        if mine.name == yours.name and (away := abs(mine.logprob - yours.logprob)) > self._limits.gap:
            return f"the log-probability of {mine.name} is {away:.3g} away"
        for one, other in ((mine, yours), (yours, mine)):
            least = min(other.top.values(), default=0.0)
            for name, logprob in one.top.items():
                away = abs(logprob - other.all[name]) if name in other.all else logprob - least
                if away > self._limits.gap:
                    return f"the log-probability of {name} is {away:.3g} away"
        return ""

    def _judged(self, ask: Ask, parting: "_Parting") -> tuple[str, bool]:
        if is_greedy(ask):
            away, most = parting.distance(partial(_gap, ask)), self._limits.gap
        elif is_plain_draw(ask):
            away, most = parting.distance(partial(_miss, ask, self._limits.gap)), self._limits.draw
        else:
            self.counts["partings of which the choice is not judged"] += 1
            return "", True
        if away > most:
            mine, yours = (each[0].name if each else "the end" for each in (parting.alone, parting.rows))
            return f"token {parting.at}: {yours} instead of {mine} is no near-tie: {away:.3g} away", False
        self.counts["near-ties"] += 1
        return "", True


class _Parting(NamedTuple):
    """The first token in which two answers differ."""

    seed: int
    at: int
    alone: Sequence[Row]
    """The rows from that token on. Those of an answer that has ended are empty."""
    rows: Sequence[Row]

    def distance(self, of: Callable[[float, Row, str], float]) -> float:
        """The larger distance of the two tokens in both rows; `of` takes the draw's number, a row, and the token that
        the other answer has there.

        A token of an answer that has ended is not listed, and its name is "". It is taken for the one that is nearest,
        in any of the rows in which it may have been drawn.
        """
        if self.alone and self.rows:
            mine, yours = self.alone[0], self.rows[0]
            number = uniform(self.seed, self.at)
            return max(of(number, mine, yours.name), of(number, yours, mine.name))
        rows = (self.alone or self.rows)[:_N_UNLISTED]
        return min(of(uniform(self.seed, at), row, "") for at, row in enumerate(rows, self.at))


# ── the choice of a token ────────────────────────────────────────────────────────────────────────


def is_greedy(ask: Ask) -> bool:
    """True if the token is the most probable one that is allowed, and all that are allowed compete by what is listed.

    A JSON schema may replace a token near the end, so that the text closes in time.
    """
    shifts = any(float(bias) != BAN for bias in ask.body.get("logit_bias", {}).values())
    closes = ask.body.keys() & {"json_schema", "response_format", "structured_outputs", "thinking_token_budget"}
    is_shifted = shifts or closes or ask.body.keys() & _SHIFTS
    return ask.body.get("temperature", 1.0) < GREEDY_BELOW and not is_shifted


def is_plain_draw(ask: Ask) -> bool:
    """True if the token is drawn from the first N_DRAWN that are listed and not banned, by one number of the seed."""
    body = ask.body
    is_cut = body.keys() & (SAMPLING_FIELDS - {"top_k", "logit_bias"} | _CONSTRAINTS)
    is_cut = is_cut or body.keys() & {"min_tokens", "ignore_eos", "thinking_token_budget"}
    is_biased = any(float(bias) != BAN for bias in body.get("logit_bias", {}).values())
    is_drawn = body.get("temperature", 1.0) >= GREEDY_BELOW and body.get("top_k") == N_DRAWN
    return bool(is_drawn and not is_cut and not is_biased)


def _gap(ask: Ask, _number: float, row: Row, other: str) -> float:
    """The distance of another token in nats; of the nearest one if that has no name."""
    allowed = {name: logprob for name, logprob in row.all.items() if name != row.name and not _is_banned(ask, name)}
    listed = [logprob for name, logprob in allowed.items() if not other or name == other]
    return min((abs(row.logprob - logprob) for logprob in listed), default=inf)


def _miss(ask: Ask, gap: float, number: float, row: Row, other: str) -> float:
    """The distance of the draw's number from the share of another token; from the nearest one if that has no name.

    Shares are adjacent, most probable first, as they are in docs/sampling.md. Tokens within `gap` of each other may
    have changed places.
    """
    logprobs = {name: logprob for name, logprob in row.top.items() if not _is_banned(ask, name)}
    names = [name for name in logprobs if (name == other if other else name != row.name)]
    return min((_away(logprobs, name, number, ask.body["temperature"], gap) for name in names), default=inf)


def _away(logprobs: dict[str, float], name: str, number: float, temperature: float, gap: float) -> float:
    own, drawn = logprobs[name], [*logprobs.values()][:N_DRAWN]
    if own < drawn[-1] - gap:
        return inf
    weights = [(each, exp((each - drawn[0]) / temperature)) for each in drawn]
    total = sum(weight for _, weight in weights)
    begin = sum(weight for each, weight in weights if each > own + gap) / total
    end = sum(weight for each, weight in weights if each >= own - gap) / total
    return max(0.0, begin - number, number - end)


def _is_banned(ask: Ask, name: str) -> bool:
    """True if no draw gives that token. In a chat those without text have no name; if chance draws, all are banned."""
    if ask.path == CHAT:
        text, _, its_bytes = name.rpartition("#")[0].rpartition(" ")
        return text in MARKS or (not its_bytes and is_plain_draw(ask))
    return bool(ask.body.get("logit_bias", {}).get(name.removeprefix("token_id:")) == BAN)


# ── lists ────────────────────────────────────────────────────────────────────────────────────────


def _is_listed(ask: Ask) -> bool:
    return has_list(ask) and ask.body.get("logprobs") is not None


def rows_of(ask: Ask, answer: Answer) -> Rows:
    """The tokens that an answer lists."""
    if ask.path == EXECUTE:
        return {"0": [*map(_of_execute, answer.lists.get("logprobs", []))]}
    if answer.body is not None:
        lists = {str(choice["index"]): choice["logprobs"] for choice in answer.body["choices"]}
    else:
        lists = {}
        for place, items in answer.lists.items():
            number, _, name = place.partition(".")
            lists.setdefault(number, {})[name] = items
    reader = _of_chat if ask.path == CHAT else _of_completion
    return {number: [*reader(each)] for number, each in lists.items() if each}


def _of_execute(entry: Json) -> Row:
    top = {str(other["id"]): other["logprob"] for other in entry["top"]}
    return Row(str(entry["id"]), entry["logprob"], top)


def _of_completion(lists: dict[str, list[Any]]) -> Iterator[Row]:
    for name, logprob, top in zip(lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True):
        first = sorted(top.items(), key=lambda pair: -pair[1])[:N_TOP]
        yield Row(name, logprob, dict(first))


def _of_chat(lists: dict[str, list[Any]]) -> Iterator[Row]:
    """Several tokens may have the same text and bytes; they are numbered, the most probable one first."""
    for entry in lists["content"]:
        top: dict[str, float] = {}
        own = ""
        seen: Counter[str] = Counter()
        for other in entry["top_logprobs"]:
            text = _text_in_chat(other)
            seen[text] += 1
            top[f"{text}#{seen[text]}"] = other["logprob"]
            if text == _text_in_chat(entry) and other["logprob"] == entry["logprob"]:
                own = f"{text}#{seen[text]}"
        yield Row(own or f"{_text_in_chat(entry)}#{seen[_text_in_chat(entry)] + 1}", entry["logprob"], top)


def _text_in_chat(entry: Json) -> str:
    return f"{entry['token']} {bytes(entry['bytes']).hex()}"


def _without_rows(answer: Answer) -> Answer:
    body = answer.body
    if body is not None and "choices" in body:
        choices = [
            {name: value for name, value in choice.items() if name not in ("logprobs", "prompt_logprobs")}
            for choice in body["choices"]
        ]
        body = body | {"choices": choices}
    return replace(answer, body=body, lists={})


def _prompt_clashes(answer: Answer, alone: Answer, most: float) -> Iterator[str]:
    """Yield where the log-probabilities of a prompt are too far apart: of those that both list, the prompt's own are
    some."""
    for mine, yours in zip(_prompts(alone), _prompts(answer), strict=False):
        for at, (one, other) in enumerate(zip(mine, yours, strict=True)):
            common = (one or {}).keys() & (other or {}).keys()
            away = max((abs(one[name]["logprob"] - other[name]["logprob"]) for name in common), default=0.0)
            if away > most or bool(common) != bool(one):
                yield f"prompt token {at}: a log-probability is {away:.3g} away"


def _prompts(answer: Answer) -> list[list[Any]]:
    choices = answer.body.get("choices", []) if answer.body is not None else []
    return [choice["prompt_logprobs"] for choice in choices if choice.get("prompt_logprobs")]
