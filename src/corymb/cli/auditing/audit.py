"""`corymb audit RUN`: whether the audit log of a run is as it was written, and what is in it."""

# No postponed annotations here: cyclopts reads them.
import json as json_module
from collections import Counter
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from corymb.cli import Exit
from corymb.runs.folder.chain import broken
from corymb.runs.folder.checkpoints import Manifest, Refused, clocks_in, manifest_path
from corymb.runs.folder.files import json_line, read_lines
from corymb.runs.folder.layout import AUDIT, CHECKPOINTS
from corymb.runs.folder.reader import read_config
from corymb.settings import InvalidInput, expanded


def audit(
    run: Annotated[Path, Parameter(help="The folder of a run.")],
    *,
    json: Annotated[bool, Parameter(help="Print one JSON object.")] = False,
) -> int:
    """Verify the chain of hashes of a run's audit log, and count what it holds: refused replies and the like."""
    place = expanded(run)
    read_config(place)  # refuses what is no run
    path = place / AUDIT
    try:
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from None
    events = read_lines(path)
    if len(events) < len(lines):
        raise InvalidInput(f"{path}, line {len(events) + 1} is no JSON: the log was torn or changed there.")
    for row, (line, event) in enumerate(zip(lines, events, strict=True), 1):
        if line != json_line(event):  # the same values, but not the same bytes: one of two equal keys, say
            raise InvalidInput(f"{path}, line {row} is not as it was written: the log was changed there.")
    if (number := broken(events)) is not None:
        raise InvalidInput(f"{path}, line {number} is not linked to the one before: the log was changed there.")
    if len(events) < (wanted := _recorded(place)):
        raise InvalidInput(f"{path} has {len(events)} lines, a checkpoint counted {wanted}: its end was cut off.")
    counts = Counter(str(event.get("what")) for event in events)
    if json:
        print(json_module.dumps({"lines": len(events), "sound": True, **counts}))
    else:
        held = ", ".join(f"{number} {what}" for what, number in sorted(counts.items())) or "nothing happened"
        print(f"{path}: {len(events)} lines, all as they were written ({held})")
    return Exit.OK


def _recorded(place: Path) -> int:
    """How many lines the last checkpoint that can be read says there are."""
    for clock in clocks_in(place / CHECKPOINTS):
        try:
            return Manifest.from_bytes(manifest_path(place / CHECKPOINTS, clock).read_bytes()).audit
        except (Refused, OSError):
            continue
    return 0
