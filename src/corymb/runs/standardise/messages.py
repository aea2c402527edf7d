"""Lines about clients whose values are unlike those of the others, and about new data unlike the data before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from corymb.runs.standardise.statistics import Excluded, RobustStandard

TARGET = "the target"


def describe_clients(found: RobustStandard, size: int, feature_names: Sequence[str] = ()) -> list[str]:
    """A line for each set of clients whose values are unlike those of the others in the same way."""
    lines = describe_excluded(
        found.excluded, size, feature_names, limits_targets=bool(found.standard.target_limit.isfinite())
    )
    lines += describe_broad(found.broad, size, feature_names)
    return lines + describe_narrow(found.narrow, size, feature_names)


def describe_excluded(
    excluded: Excluded, size: int, feature_names: Sequence[str] = (), *, limits_targets: bool = False
) -> list[str]:
    """A line for each set of clients excluded from the same scales; examples have `size` features.

    With `limits_targets`, targets far out are limited in training.

    >>> describe_excluded({"b": [1, 2]}, 2, ("age", "dose"))
    ["client 'b' would dominate the variance of 'dose' and the target: it is excluded from their scale"]
    """
    return [
        f"{'client' if one else 'clients'} {who} would dominate the variance of {what}: "
        f"{'it is' if one else 'they are'} excluded from {its} scale"
        + (_limited(one) if limits_targets and what.endswith(TARGET) else "")
        for one, who, what, its in _alike(excluded, size, feature_names)
    ]


def _limited(one: bool) -> str:
    its, it = ("its", "it") if one else ("their", "them")
    return f", and {its} targets are limited in training, so predictions for {it} will be far off: check their units"


def describe_broad(broad: Excluded, size: int, feature_names: Sequence[str] = ()) -> list[str]:
    """A line for each set of clients whose values determine a scale at which those of most others hardly vary.

    >>> describe_broad({"a": [1], "b": [1]}, 2, ("age", "dose"))
    ["clients 'a' and 'b' have values of 'dose' out of all proportion to the others', perhaps in other units: they \
determine its scale, at which the other clients hardly differ"]
    """
    return [
        f"{'client' if one else 'clients'} {who} {'has' if one else 'have'} values of {what} out of all proportion to "
        f"the others', perhaps in other units: {'it determines' if one else 'they determine'} {its} scale, at which "
        "the other clients hardly differ"
        for one, who, what, its in _alike(broad, size, feature_names)
    ]


def describe_narrow(narrow: Excluded, size: int, feature_names: Sequence[str] = ()) -> list[str]:
    """A line for each set of clients whose values hardly vary at the scale that the other clients determine.

    >>> describe_narrow({"a": [0]}, 1, ("power",))
    ["client 'a' has values of 'power' that vary less than a hundredth as much as at the other clients, perhaps in \
other units: at the common scale they hardly differ"]
    """
    return [
        f"{'client' if one else 'clients'} {who} {'has' if one else 'have'} values of {what} that vary less than a "
        "hundredth as much as at the other clients, perhaps in other units: at the common scale they hardly differ"
        for one, who, what, _ in _alike(narrow, size, feature_names)
    ]


def describe_changed(changed: list[int], size: int, feature_names: Sequence[str] = ()) -> list[str]:
    """A line about features of new data that are unlike those of the data before; empty if there are none.

    >>> describe_changed([0], 1, ("power",))
    ["values of 'power' in the new data are out of all proportion to those before, perhaps in other units: they are \
standardised as before, because the models know no other units"]
    """
    return [
        f"values of {what} in the new data are out of all proportion to those before, perhaps in other units: they are "
        "standardised as before, because the models know no other units"
        for _, _, what, _ in _alike({"": changed} if changed else {}, size, feature_names)
    ]


def _alike(
    found: Excluded, size: int, feature_names: Sequence[str]
) -> Iterator[tuple[bool, str, str, Literal["its", "their"]]]:
    """Clients grouped by the same features: whether it is a single client, the clients, the features, and its/their."""

    def called(place: int) -> str:
        if place == size:
            return TARGET
        return repr(feature_names[place]) if feature_names else f"feature {place}"

    alike: dict[tuple[int, ...], list[str]] = {}
    for client, its in found.items():
        alike.setdefault(tuple(its), []).append(client)
    for places, clients in alike.items():
        who, what = _some([repr(client) for client in clients], 10), _some([called(place) for place in places], 3)
        yield len(clients) == 1, who, what, "its" if len(places) == 1 else "their"


def _some(names: Sequence[str], most: int) -> str:
    most = len(names) if len(names) == most + 1 else most  # a last name takes no more room than "1 other"
    listed = [*names[:most], *([f"{len(names) - most} others"] if len(names) > most else [])]
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"
