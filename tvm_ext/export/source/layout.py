"""Lines of C of bounded length."""

from __future__ import annotations

__all__ = ["WIDTH", "wrapped"]

WIDTH = 100


def wrapped(text: str, indent: int) -> list[str]:
    """``text`` indented, broken at blanks where it is too long.

    It holds no string literals.
    """
    lines, rest, margin = [], text, " " * indent
    while len(margin) + len(rest) > WIDTH:
        at = _break(rest, WIDTH - len(margin))
        if at is None:
            break
        lines.append(margin + rest[:at].rstrip())
        rest, margin = rest[at:].lstrip(), " " * (indent + 4)
    return [*lines, margin + rest]


def _break(text: str, room: int) -> int | None:
    """The blank to break at: inside the fewest brackets, the last of those in the room.

    Those in the first half are used where there are no others, and one beyond where there is none.
    """
    depth = 0
    best: tuple[bool, int, int] | None = None
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character != " ":
            continue
        if at > room:
            return at if best is None else -best[2]
        rank = at < room // 2, depth, -at
        best = rank if best is None else min(best, rank)
    return None if best is None else -best[2]
