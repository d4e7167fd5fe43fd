"""C identifiers from whatever models and tensors are called."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["identifier", "identifiers"]

# Of C and C++, where a name alone would not compile.
_KEYWORDS = """
    alignas alignof and asm auto bitand bitor bool break case catch char class compl concept const
    constexpr continue decltype default delete do double else enum explicit export extern false
    float for friend goto if inline int long mutable namespace new noexcept not nullptr operator or
    private protected public register reinterpret_cast requires restrict return short signed sizeof
    static struct switch template this throw true try typedef typeid typename typeof union unsigned
    using virtual void volatile wchar_t while xor
"""
# Whose header or functions a model of that name would hide: <string.h>, pthread_create.
_SYSTEM = """
    assert complex ctype errno fcntl fenv float inttypes iso646 limits locale math memory mq poll
    pthread sched search sem semaphore setjmp shm signal stdalign stdarg stdatomic stdbool stddef
    stdint stdio stdlib stdnoreturn string strings tgmath thrd mtx cnd tss threads time timer uchar
    unistd wchar wctype
"""
_TAKEN = frozenset((_KEYWORDS + _SYSTEM).split())
_LONGEST = 48


def identifier(name: str) -> str:
    """``name`` as a C identifier that is no keyword and names no header of the system."""
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")[:_LONGEST] or "model"
    if not plain[0].isalpha() or plain.lower().startswith("tvmx"):
        plain = f"m_{plain}"
    return f"{plain}_model" if plain.lower() in _TAKEN else plain


def identifiers(names: Iterable[str]) -> list[str]:
    """An identifier for each name, no two alike in any case of letters."""
    found: list[str] = []
    for name in names:
        plain, number = identifier(name), 1
        unique = plain
        while unique.lower() in (other.lower() for other in found):
            number += 1
            unique = f"{plain}_{number}"
        found.append(unique)
    return found
