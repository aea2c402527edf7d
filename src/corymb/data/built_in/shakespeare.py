"""Shakespeare's plays by role, as LEAF's json (Caldas et al. 2018) or as speeches by play and role."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

from corymb.data.built_in.fetching import DataUnavailable, Home
from corymb.data.built_in.roles import LENGTH, Roles
from corymb.data.readers.leaf import OfUser, users_in
from corymb.settings import require

SHAKESPEARE = Home(name="shakespeare", packed=("shakespeare/moby_roles.json.gz", "shakespeare/train"))


def read_published(home: Home) -> Roles:
    """LEAF's folders `train` and `test` in the cache."""
    if (home.folder / "train").is_dir():
        return read_leaf(home.folder)
    raise DataUnavailable(
        f"shakespeare: put LEAF's folders train and test (-s niid -t sample) into {home.folder}, or set CORYMB_DATA to "
        f"a folder with {home.packed[0]}."
    )


def read_packed(path: Path) -> Roles:
    """Gzipped json `{play: {role: [speech, ...]}}`, or LEAF's folders."""
    if path.is_dir():
        return read_leaf(path.parent)
    try:
        plays = json.loads(gzip.decompress(path.read_bytes()))
        texts = {f"{play}/{role}": said(speeches) for play, roles in plays.items() for role, speeches in roles.items()}
    except (OSError, EOFError, zlib.error, ValueError, AttributeError, TypeError) as error:
        raise DataUnavailable(f"{path} cannot be read ({error}): pack it again, or unset CORYMB_DATA.") from None
    return Roles(texts)


def said(speeches: list[str]) -> str:
    """One text of many speeches, with one space wherever there is space, as LEAF does it."""
    return " ".join(" ".join(speeches).split())


def read_leaf(folder: Path) -> Roles:
    """LEAF's folders `train` and `test`, whose examples follow each other by one character."""
    train, test = ({user.name: _text(user) for user in users_in(folder, part)} for part in ("train", "test"))
    return Roles({role: text for role, text in train.items() if text}, test)


def _text(user: OfUser) -> str:
    """The text whose examples these are."""
    if not user.x:
        return ""
    text = "".join([user.x[0], *user.y])
    follow = all(text[i : i + LENGTH] == window for i, window in enumerate(user.x))
    require(
        follow, f"Role {user.name!r}: examples are not every {LENGTH} characters of a text in turn, as LEAF has them."
    )
    return text
