"""Key paths: the name of a leaf as text, and the directory its array lives in.

As text a path is the keys joined by `/`, escaped as in a JSON pointer (RFC 6901), so
that it splits back into its keys. As a directory name it is the keys joined by `.`,
where everything but `a-z 0-9 _ -` is escaped: two paths share no name, not even where
a file system ignores case or Unicode form, and no name leaves its directory. The
name is always computed from the path, never read from a file.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterable

SEPARATOR = "/"
_PLAIN = frozenset(string.ascii_lowercase + string.digits + "_-")
_LONGEST_NAME = 200  # bytes; most file systems end at 255
_RESERVED = "zarr.json"  # the metadata file of the group that the directories lie in


def join(keys: Iterable[object]) -> str:
    """The text of a path: `join(["a/b", 0])` is `"a~1b/0"`. Keys that are no str appear as repr.

    What is no Unicode in a key appears as a backslash and its number.
    """
    texts = [key if isinstance(key, str) else repr(key) for key in keys]
    whole = SEPARATOR.join(texts)
    if "~" in whole or whole.count(SEPARATOR) >= len(texts):
        texts = [text.replace("~", "~0").replace(SEPARATOR, "~1") for text in texts]
        whole = SEPARATOR.join(texts)
    return whole if whole.isascii() else whole.encode("utf-8", "backslashreplace").decode()


def split(path: str) -> list[str]:
    """The keys of a path, as text: `split("a~1b/0")` is `["a/b", "0"]`."""
    return [key.replace("~1", SEPARATOR).replace("~0", "~") for key in path.split(SEPARATOR)]


def directory(path: str, array: str = "") -> str:
    """The directory, one level, of the array named `array` of the leaf at `path`.

    >>> directory("params/layer_0/Kernel")
    'params.layer_0.^kernel'
    """
    name = ".".join(_escape(key) or "%" for key in split(path))
    if array:
        name += "@" + _escape(array)
    if name == _RESERVED:
        return "%7a" + name[1:]
    if len(name) > _LONGEST_NAME:
        return f"{name[: _LONGEST_NAME - 33]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"
    return name


def _escape(key: str) -> str:
    """`^` and the small letter for a capital, `%` and two hex digits for each byte of the rest."""
    return "".join(
        char
        if char in _PLAIN
        else f"^{char.lower()}"
        if char in string.ascii_uppercase
        else "".join(f"%{byte:02x}" for byte in char.encode("utf-8", "surrogatepass"))
        for char in key
    )
