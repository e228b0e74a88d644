"""Whether llama.cpp can run a grammar that it can read: no rule begins with itself, and the ways on are bounded.

llama.cpp holds every way a text may go on as a stack of places, and finds them all at once after every character.
Its own check for left recursion looks at written-out empty rules only, so that a hidden one eats all memory; and rules
that each begin with two of the next double the ways at every level. Pure; intake thread.
"""

from collections.abc import Iterator

from worker.llama.gbnf import TERMINAL, Rules

MAX_WAYS = 600
"""Ways on from one point, say the values of an enumeration (the front takes 500). Each costs a pass over the vocabulary
when a token is refused, and going on can take the cube of their number: 900 times `"a"?` took 1.6 s for one token."""
MAX_CHAIN = 1000
"""Rules that begin with each other in a row, which llama.cpp follows by recursion; 4,000 fit a stack of 8 MiB."""
MAX_CLONE_WORK = 2 * 10**8
"""Comparisons to copy a grammar for a job (ways × chain × elements, about 1 ns each)."""


def check_cost(rules: Rules) -> None:
    """Raises: BadGrammar, with the place of a rule at fault."""
    empty = _may_be_empty(rules)
    ways, chain = [0] * len(rules.places), [0] * len(rules.places)
    for rule in _leftmost_first(rules, empty):
        for alternative in rules.alternatives[rule]:
            ways[rule] += _ways(rules, rule, alternative, empty, ways)
        chain[rule] = 1 + max((chain[begin] for begin in _begins(rules, rule, empty)), default=0)
        _check_rule(rules, rule, ways[rule], chain[rule])


def _check_rule(rules: Rules, rule: int, ways: int, chain: int) -> None:
    if ways > MAX_WAYS:
        raise rules.error(rules.places[rule], f"more than {MAX_WAYS} alternatives are open at this point")
    if chain > MAX_CHAIN:
        raise rules.error(rules.places[rule], f"more than {MAX_CHAIN} rules begin with each other here")
    if ways * chain * rules.n_elements > MAX_CLONE_WORK:
        raise rules.error(rules.places[rule], "too many alternatives at this point of so large a grammar")


def _may_be_empty(rules: Rules) -> list[bool]:
    """For each rule whether it matches the empty text; linear in the size of the grammar."""
    empty = [False] * len(rules.places)
    users: dict[int, list[list[int]]] = {}
    found = []
    for rule, alternatives in rules.alternatives.items():
        for alternative in alternatives:
            if TERMINAL in alternative:
                continue
            # [the rule, how many of the alternative's rules are not yet known to be possibly empty]
            count = [rule, len(alternative)]
            for used in alternative:
                users.setdefault(used, []).append(count)
            if not alternative:
                found.append(rule)
    while found:
        rule = found.pop()
        if empty[rule]:
            continue
        empty[rule] = True
        for count in users.get(rule, ()):
            count[1] -= 1
            if count[1] == 0:
                found.append(count[0])
    return empty


def _begins(rules: Rules, rule: int, empty: list[bool]) -> Iterator[int]:
    """The rules this one may begin with. A loop's own end is not among them: it adds nothing to a stack."""
    for alternative in rules.alternatives[rule]:
        for item in alternative:
            if item != TERMINAL and not (item == rule and rule in rules.loops):
                yield item
            if item == TERMINAL or not empty[item]:
                break


def _ways(rules: Rules, rule: int, alternative: list[int], empty: list[bool], ways: list[int]) -> int:
    """Stacks made of one alternative, at most: those that llama.cpp finds to be equal are counted apart."""
    n = 0
    for item in alternative:
        if item == TERMINAL:
            return n + 1
        if not empty[item]:
            return n + ways[item]
        if item != rule or rule not in rules.loops:
            # Where it is empty, the way goes on by the next item.
            n += ways[item] - 1
    return n + 1


def _leftmost_first(rules: Rules, empty: list[bool]) -> Iterator[int]:
    """Every rule after those it may begin with. Raises: BadGrammar for a rule that may begin with itself."""
    is_open = [False] * len(rules.places)
    is_done = [False] * len(rules.places)
    for start in range(len(rules.places)):
        path = [] if is_done[start] else [(start, _begins(rules, start, empty))]
        is_open[start] = True
        while path:
            rule, begins = path[-1]
            following = next((begin for begin in begins if not is_done[begin]), None)
            if following is None:
                is_done[rule] = True
                path.pop()
                yield rule
            elif is_open[following]:
                raise rules.error(rules.places[following], "this rule may begin with itself (left recursion)")
            else:
                is_open[following] = True
                path.append((following, _begins(rules, following, empty)))
