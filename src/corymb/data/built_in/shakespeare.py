"""Shakespeare's plays by role: the texts of the plays, LEAF's json (Caldas et al. 2018), or speeches by play and role.

The download is the 37 plays of the Moby Shakespeare, which is in the public domain, as files in a repository at a fixed
commit. LEAF itself starts from a text of Project Gutenberg that has no published checksum, and finds fewer roles; its
json files are also read if they are present.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Literal

from corymb.data.built_in.roles import LENGTH, Roles
from corymb.data.fetching.home import DataUnavailable, Home, Published
from corymb.data.readers.leaf import OfUser, users_in
from corymb.settings import require

Speeches = Mapping[str, Sequence[str]]
_DIRECTION = re.compile(r"\[[^\]]*\]")
_SCENE = re.compile(r"(ACT|SCENE|PROLOGUE|EPILOGUE|INDUCTION)\b")


def _plays() -> tuple[Published, ...]:
    """The files and their SHA-256, as `sha256sum` writes them."""
    lines = (files(__package__) / "plays.sha256").read_text(encoding="ascii").splitlines()
    return tuple(Published(name, 2**18, digest) for digest, name in (line.split() for line in lines))


SHAKESPEARE = Home(
    name="shakespeare",
    packed=("shakespeare/moby_roles.json.gz", "shakespeare/train"),
    mirrors=(
        "https://raw.githubusercontent.com/martin-gorner/tensorflow-rnn-shakespeare/"
        "25946cd6486e8a8f96d84edb200a8b8b6e961c27/shakespeare/",
    ),
    files=_plays(),
    licence="public domain (the repository: Apache-2.0)",
)


def read_published(home: Home) -> Roles:
    """Read LEAF's folders `train` and `test` if they are in the cache; else the plays, downloaded if needed."""
    if (home.folder / "train").is_dir():
        return read_leaf(home.folder)
    kept = home.obtain()
    return _joined({play.path.stem: parse_play(play.contents.decode("latin-1")) for play in kept})


def read_packed(path: Path) -> Roles:
    """Read gzipped json `{play: {role: [speech, ...]}}`, or LEAF's folders."""
    if path.is_dir():
        return read_leaf(path.parent)
    try:
        return _joined(json.loads(gzip.decompress(path.read_bytes())))
    except (OSError, EOFError, zlib.error, ValueError, AttributeError, TypeError) as error:
        raise DataUnavailable(f"{path} cannot be read ({error}): pack it again, or unset CORYMB_DATA.") from None


def _joined(plays: Mapping[str, Speeches]) -> Roles:
    """One text for each role of each play, with whitespace collapsed to single spaces, as in LEAF."""
    return Roles(
        {
            f"{play}/{role}": " ".join(" ".join(speeches).split())
            for play, roles in plays.items()
            for role, speeches in roles.items()
        }
    )


def parse_play(text: str) -> dict[str, list[str]]:
    """Parse the speeches of each role: a name and a tab start one, and lines that start with a tab continue it.

    Stage directions in brackets are left out; a speech by several roles is attributed to the first.
    """
    lines = _DIRECTION.sub(" ", text).splitlines()
    title = next((line.strip() for line in lines if line.strip()), "")
    begin = next((number for number, line in enumerate(lines) if re.match(r"ACT\s+I\b", line)), len(lines))
    roles: dict[str, list[list[str]]] = {}
    speech: list[str] | None = None
    for line in lines[begin + 1 :]:
        head, tab, rest = line.partition("\t")
        name, words = head.strip().rstrip(":"), rest.replace("|", " ").split()
        if _SCENE.match(name) or (not name and rest.strip() == title):  # pages repeat the title
            speech = None
        elif tab and name:
            speech = list(words)
            roles.setdefault(name, []).append(speech)
        elif tab and speech is not None:
            speech += words
    spoken = {name: [" ".join(speech) for speech in speeches if speech] for name, speeches in roles.items()}
    return {name: speeches for name, speeches in spoken.items() if speeches}


def read_leaf(folder: Path) -> Roles:
    """Read LEAF's folders `train` and `test`, whose examples are windows shifted by one character."""
    train, test = (_texts(folder, part) for part in ("train", "test"))
    return Roles({role: text for role, text in train.items() if text}, test)


def _texts(folder: Path, part: Literal["train", "test"]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for user in users_in(folder, part):
        require(user.name not in texts, f"{folder / part}: role {user.name!r} is in two shards; write them again.")
        texts[user.name] = _text(user)
    return texts


def _text(user: OfUser) -> str:
    """Reconstruct the text from its examples."""
    if not user.x:
        return ""
    text = "".join([user.x[0], *user.y])
    follow = all(text[i : i + LENGTH] == window for i, window in enumerate(user.x))
    require(
        follow, f"Role {user.name!r}: examples are not all {LENGTH} characters of a text in turn, as LEAF has them."
    )
    return text
