"""In how many ways a regular expression takes a short text: what makes one stall the engine.

vLLM follows a constraint with every way in which the text so far can have come about, in the engine's own
loop, while all other requests wait. With xgrammar 0.2.8 and 49,152 tokens `(\\w{1,20} ?){1,20}` took more
than 6 s for a token, and `(.*.*.*)*` fifty times over more than 20 s; `((\\w+ )+\\. )+` took 3 ms. No limit
of length tells them apart, the number of ways does. vLLM's backend "guidance" gives up by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

TEXT_LENGTH = 16
"""The ways are counted for the text of so many characters that has most of them."""
MAX_WAYS = 20_000
MAX_WAYS_COUNTED = 64
"""Where the expression also counts its repetitions: their numbers are remembered, and ways never merge."""
COUNTED_FROM = 8
"""A repetition of at most so many does not count as counted."""
MAX_LINKS = 30_000
"""An expression with more places that can follow each other is not looked at, and refused."""

Accepts = Callable[[str], bool]
_WORD: Accepts = lambda c: c.isalnum() or c == "_"  # noqa: E731
_CLASSES: dict[str, Accepts] = {"w": _WORD, "d": str.isdigit, "s": str.isspace}
# Without digits: few tokens consist of them, so that what repeats digits alone costs little.
_COMMON = "aA_- .,é\n"
_MAX_LETTERS = 32


def is_ambiguous(pattern: str) -> bool:
    """Whether `pattern` takes some short text in too many ways, or is nested too deeply to tell; False for
    what cannot be read."""
    places = Places()
    try:
        return places.too_many_ways(read_pattern(pattern, places))
    except (TooManyLinks, RecursionError):
        return True
    except (IndexError, ValueError):
        return False  # vLLM says what is wrong with it


def _ways(first: list[int], whole: Places) -> int:
    letters = [letter for letter in dict.fromkeys([*_COMMON, *whole.letters]) if not letter.isdigit()]
    letters = letters[:_MAX_LETTERS]
    takes = [{letter for letter in letters if accepts(letter)} for accepts in whole.places]
    arriving = dict.fromkeys(first, 1)
    worst = 0
    for _ in range(TEXT_LENGTH):
        totals = dict.fromkeys(letters, 0)
        for place, ways in arriving.items():
            for letter in takes[place]:
                totals[letter] += ways
        best = max(totals, key=totals.__getitem__)
        worst = max(worst, totals[best])
        if totals[best] == 0 or worst > MAX_WAYS:
            break
        reached = {place: ways for place, ways in arriving.items() if best in takes[place]}
        arriving = {}
        for last, following in whole.links:
            if ways := sum(reached.get(place, 0) for place in last):
                for place in following:
                    arriving[place] = arriving.get(place, 0) + ways
    return worst


@dataclass
class Part:
    """A part of an expression: whether it takes nothing, too, and at which places it begins and ends."""

    nullable: bool = True
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)


class TooManyLinks(Exception):
    """More than MAX_LINKS."""


class Places:
    """An expression's places (one per character or class) and the links between them, as Glushkov's
    construction has them, but with each link that two ways give kept twice."""

    def __init__(self) -> None:
        self.places: list[Accepts] = []
        self.links: list[tuple[list[int], list[int]]] = []
        self.letters: list[str] = []
        self.counts = False
        self._size = 0

    def too_many_ways(self, whole: Part, limit: int = MAX_WAYS) -> bool:
        """Whether some short text is taken in more than `limit` ways from where `whole` begins."""
        return _ways(whole.first, self) > (MAX_WAYS_COUNTED if self.counts else limit)

    def _link(self, last: list[int], following: list[int]) -> None:
        if last and following:
            self._size += len(last) + len(following)
            if self._size > MAX_LINKS:
                raise TooManyLinks
            self.links.append((last, following))

    def place(self, accepts: Accepts) -> Part:
        """A new place."""
        self.places.append(accepts)
        place = [len(self.places) - 1]
        return Part(False, place, place)

    def letter(self, letter: str) -> Part:
        """A place for this one letter."""
        self.letters.append(letter)
        return self.place(lambda c: c == letter)

    def followed(self, whole: Part, part: Part) -> Part:
        """`whole`, then `part`."""
        self._link(whole.last, part.first)
        first = whole.first + part.first if whole.nullable else whole.first
        last = part.last + whole.last if part.nullable else part.last
        return Part(whole.nullable and part.nullable, first, last)

    def either(self, parts: Sequence[Part]) -> Part:
        """One of them."""
        return Part(
            any(part.nullable for part in parts),
            [place for part in parts for place in part.first],
            [place for part in parts for place in part.last],
        )

    def repeated(self, part: Part, least: int, most: int | None) -> Part:
        """`part` so many times."""
        if most is None or most > 1:
            self._link(part.last, part.first)
        if most is not None and most >= COUNTED_FROM:
            self.counts = True
        return Part(part.nullable or least == 0, part.first, part.last)


def read_pattern(pattern: str, places: Places) -> Part:
    """The regular expression `pattern` in the common syntax, its places among `places`. Raises IndexError,
    ValueError or RecursionError where it cannot be read, and TooManyLinks."""
    return _Reader(pattern, places).alternatives()


class _Reader:
    def __init__(self, pattern: str, places: Places) -> None:
        self._places = places
        self._text = pattern
        self._at = 0

    def alternatives(self) -> Part:
        """Everything up to the end, or to the parenthesis that closes this group."""
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        return self._places.either(parts) if len(parts) > 1 else parts[0]

    def _sequence(self) -> Part:
        whole = Part()
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            whole = self._places.followed(whole, self._repeated(self._atom()))
        return whole

    def _repeated(self, part: Part) -> Part:
        while self._at < len(self._text):
            least, most = self._quantifier()
            if least is None:
                break
            part = self._places.repeated(part, least, most)
        return part

    def _quantifier(self) -> tuple[int | None, int | None]:
        found = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self._text[self._at])
        if found is not None:
            self._at += 1
            return found
        end = self._text.find("}", self._at)
        if self._text[self._at] != "{" or end < 0:
            return None, None
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if not (low or "0").isdigit() or not (high or "0").isdigit():
            return None, None
        self._at = end + 1
        least = int(low or 0)
        return least, (int(high) if high else None) if comma else least

    def _atom(self) -> Part:
        letter = self._next()
        if letter == "(":
            self._skip_group_kind()
            part = self.alternatives()
            self._take(")")
            return part
        if letter in "^$":
            return Part()
        if letter == "[":
            return self._places.place(self._class())
        if letter == ".":
            return self._places.place(lambda c: c != "\n")
        if letter == "\\":
            return (
                Part()
                if self._text[self._at] in "bB" and self._next()
                else self._places.place(self._escape())
            )
        return self._places.letter(letter)

    def _skip_group_kind(self) -> None:
        if self._take("?"):
            self._take("P")
            if self._next() == "<" and self._text[self._at] not in "=!":
                self._at = self._text.index(">", self._at) + 1

    def _class(self) -> Accepts:
        negated = self._take("^")
        members: list[Accepts] = []
        begun = self._at
        while (letter := self._next()) != "]" or self._at - 1 == begun:
            if letter == "\\":
                members.append(self._escape())
                continue
            end = letter
            if self._text[self._at] == "-" and self._text[self._at + 1] not in "]\\":
                self._at += 1
                end = self._next()
            self._places.letters.append(letter)
            members.append(lambda c, low=letter, high=end: low <= c <= high)  # type: ignore[misc]
        return lambda c: any(accepts(c) for accepts in members) != negated

    def _escape(self) -> Accepts:
        letter = self._next()
        if (known := _CLASSES.get(letter.lower())) is not None:
            return known if letter.islower() else lambda c: not known(c)
        if letter in "pP" and self._text[self._at : self._at + 1] == "{":
            self._at = self._text.index("}", self._at) + 1
            return lambda c: True
        plain = {"n": "\n", "t": "\t", "r": "\r"}.get(letter, letter)
        self._places.letters.append(plain)
        return lambda c: c == plain

    def _take(self, letter: str) -> bool:
        found = self._text[self._at : self._at + 1] == letter
        self._at += found
        return found

    def _next(self) -> str:
        self._at += 1
        return self._text[self._at - 1]
