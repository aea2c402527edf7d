"""`corymb audit RUN`: verify that the audit log of a run has not been altered, and summarise it."""

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
    """Verify the hash chain of a run's audit log, and count its events, such as rejected replies."""
    place = expanded(run)
    read_config(place)  # raises if it is not a run
    path = place / AUDIT
    try:
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from None
    events = read_lines(path)
    if len(events) < len(lines):
        raise InvalidInput(f"{path}, line {len(events) + 1} is not JSON: the log was truncated or altered there.")
    for row, (line, event) in enumerate(zip(lines, events, strict=True), 1):
        if line != json_line(event):  # the same values in different bytes, such as a duplicate key
            raise InvalidInput(f"{path}, line {row} is not as it was written: the log was altered there.")
    if (number := broken(events)) is not None:
        raise InvalidInput(f"{path}, line {number} is not linked to the previous line: the log was altered there.")
    if len(events) < (wanted := _recorded(place)):
        raise InvalidInput(f"{path} has {len(events)} lines, but a checkpoint recorded {wanted}: its end is missing.")
    counts = Counter(str(event.get("what")) for event in events)
    if json:
        print(json_module.dumps({"lines": len(events), "sound": True, **counts}))
    else:
        held = ", ".join(f"{number} {what}" for what, number in sorted(counts.items())) or "no events"
        print(f"{path}: {len(events)} line{'s' * (len(events) != 1)}, verified ({held})")
    return Exit.OK


def _recorded(place: Path) -> int:
    """The number of lines recorded by the last readable checkpoint; 0 if there is none."""
    for clock in clocks_in(place / CHECKPOINTS):
        try:
            return Manifest.from_bytes(manifest_path(place / CHECKPOINTS, clock).read_bytes()).audit
        except (Refused, OSError):
            continue
    return 0
