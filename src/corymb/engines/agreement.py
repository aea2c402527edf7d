"""Checks that the nodes' examples have the same schema; if they differ, suggests options that make them agree.

A node infers classes, columns and categories from its own rows, so two nodes may infer different ones. Those that are
given as options are not inferred, and are the same on all nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from corymb.settings import InvalidInput

Hello = Mapping[str, Any]
"""A node's description of itself."""
COMMON_FIELDS = ("task", "classes", "feature_names", "features", "standardise", "codes", "linear", "preparation")
"""The fields of the schema that must agree; notes are concatenated, and counts of clients are added."""
OTHER_CATEGORY = "other"
"""The category for all remaining values; it comes last."""
MAX_VALUE_LENGTH, MAX_DIFFERENCES = 80, 4
"""The most characters of a value, and the most differences, that are shown: the suggested options follow them."""


def same_schema(hellos: Sequence[Hello]) -> dict[str, Any]:
    """The schema of all clients' examples; raises InvalidInput if the nodes' schemas differ."""
    first = hellos[0]
    for hello in hellos[1:]:
        if any(first["schema"].get(name) != hello["schema"].get(name) for name in COMMON_FIELDS):
            raise InvalidInput(f"Nodes {first['name']!r} and {hello['name']!r} {_mismatch(first, hello, hellos)}")
    notes = [f"{hello['name']}: {note}" for hello in hellos for note in hello["schema"].get("notes", ())]
    counts: dict[str, int] = {}
    for hello in hellos:
        for name, count in hello["schema"].get("clients", {}).items():
            counts[name] = counts.get(name, 0) + int(count)
    return {**first["schema"], "notes": tuple(notes), "clients": counts}


def _mismatch(first: Hello, hello: Hello, all_hellos: Sequence[Hello]) -> str:
    """How two nodes differ, and the options to add on all nodes. A malformed schema must not end the run."""
    begin = "differ in what their examples are like"
    try:
        found = list(_differences(first["schema"], hello["schema"]))
        differ = "; ".join(
            [
                *found[:MAX_DIFFERENCES],
                *([f"and {len(found) - MAX_DIFFERENCES} more"] if len(found) > MAX_DIFFERENCES else []),
            ]
        )
        return (
            f"{begin}: {differ}. {_options_to_add([one['schema'] for one in all_hellos], list(map(_rows, all_hellos)))}"
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return f"{begin}, and one of their schemas cannot be read: install the same version on both."


def _rows(hello: Hello) -> float:
    """The number of examples of a node, used as its weight."""
    return float(sum(hello["sizes"].tolist())) if "sizes" in hello else 1.0


def _columns(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """How columns became features, by name; empty if the examples are not a table."""
    prepared = schema.get("preparation") or {}
    return {str(plan["name"]): plan for plan in prepared.get("columns", ())}


# ---- differences


def _differences(mine: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    for name in ("task", "classes"):
        if mine.get(name) != other.get(name):
            yield f"{name} is {_short_difference(mine.get(name), other.get(name))}"
    columns = (_columns(mine), _columns(other))
    if all(columns):
        yield from _of_columns(*columns)
    elif mine.get("feature_names") != other.get("feature_names"):
        yield f"feature_names is {_short_difference(mine.get('feature_names'), other.get('feature_names'))}"
    elif mine.get("features") != other.get("features"):
        yield f"an example has the shape {_shape(mine)} and {_shape(other)}"
    one, two = ((schema.get("preparation") or {}) for schema in (mine, other))
    for name, what in (("scale", "scale is"), ("top", "pixels are divided by")):
        if one.get(name) != two.get(name):
            yield f"{what} {one.get(name)!r} and {two.get(name)!r}"
    for name in ("standardise", "codes", "linear"):
        if one.get("scale") == two.get("scale") and mine.get(name) != other.get(name):
            yield f"{name} is {mine.get(name)!r} and {other.get(name)!r}"


def _of_columns(mine: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    only = _only_in_one(mine, other)
    if any(only):
        yield f"columns that only one has are {_short(only[0])} and {_short(only[1])}"
    elif list(mine) != list(other):
        yield f"their columns are in another order, {_short(list(mine))} and {_short(list(other))}"
    fills = []
    for name in mine:
        one, two = mine[name], other.get(name, mine[name])
        if one["what"] != two["what"]:
            yield f"column {name!r} is a {one['what']} and a {two['what']}"
        elif one["categories"] != two["categories"]:
            categories = list(one["categories"]), list(two["categories"])
            yield f"column {name!r} has the categories {_short_difference(*categories)}"
        elif one["fill"] != two["fill"]:
            fills.append(f"{name!r} as {_number(one['fill'])} and {_number(two['fill'])}")
    if fills:
        yield f"missing cells are taken, in column {', in '.join(fills[:3])}{', and others' * (len(fills) > 3)}"


def _short_difference(mine: Any, other: Any) -> str:
    """Two values; for long lists of names, only those that are in one of them."""
    if isinstance(mine, (list, tuple)) and isinstance(other, (list, tuple)) and len(str(mine)) + len(str(other)) > 160:
        only = _only_in_one(mine, other)
        if any(only):
            return f"{len(mine)} names with {_short(only[0])} and {len(other)} names with {_short(only[1])}"
    return f"{_short(mine)} and {_short(other)}"


def _only_in_one(mine: Collection[Any], other: Collection[Any]) -> list[list[Any]]:
    """The names that only the first has, and those that only the second has."""
    return [[name for name in one if name not in two] for one, two in ((mine, other), (other, mine))]


def _short(value: Any) -> str:
    return text if len(text := str(value)) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}…"


def _shape(schema: Mapping[str, Any]) -> list[Any]:
    return list(schema.get("features", ()))


def _number(fill: float | None) -> str:
    return "nothing" if fill is None else f"{fill:.6g}"


# ---- options that remove them


def _options_to_add(schemas: Sequence[Mapping[str, Any]], rows: Sequence[float]) -> str:
    """Options that give all nodes the same schema, ready to be copied."""
    options, hint = dict[str, object](), ""
    if len({schema.get("task") for schema in schemas}) > 1:
        return "Say task='classification' or task='regression' where all nodes' data are read."
    classes = [schema.get("classes", ()) for schema in schemas]
    if any(one != classes[0] for one in classes):
        options["classes"] = _union(classes)
    tables = [_columns(schema) for schema in schemas]
    if all(tables):
        options |= _of_tables(tables, rows)
        lacking = [name for name in _categorical(tables) if not all(name in table for table in tables)]
        if lacking:
            hint = f" A node without column {lacking[0]!r} leaves all others without it: drop it from both then."
    elif len({str(schema.get("feature_names")) for schema in schemas}) > 1:
        options["features"] = _common([list(schema.get("feature_names", ())) for schema in schemas])
    scales = {str((schema.get("preparation") or {}).get("scale")) for schema in schemas}
    if len(scales) > 1 and not options:
        return f"Say scale=… where all nodes' data are read, one of {', '.join(map(repr, sorted(scales)))}."
    if not options:
        return "Prepare all nodes' data by the same steps."
    typed = ", ".join(f"{name}={value!r}" for name, value in options.items())
    where = "Where all nodes' data are read (corymb.datasets.from_folder and its like)"
    return f"{where}, add {typed}. Then start them again.{hint}"


def _of_tables(tables: Sequence[Mapping[str, Any]], rows: Sequence[float]) -> dict[str, object]:
    options: dict[str, object] = {}
    texts = _categorical(tables)
    if any(list(table) != list(tables[0]) for table in tables):
        everywhere = _common([list(table) for table in tables])
        options["features"] = [*everywhere, *(name for name in texts if name not in everywhere)]
    categories = {
        name: _union([table[name]["categories"] for table in tables if name in table])
        for name in texts
        if len({str(table.get(name)) for table in tables}) > 1
    }
    if categories:
        options["categories"] = categories
    shared = [name for name in _common([list(table) for table in tables]) if name not in texts]
    fills = {name: [table[name]["fill"] for table in tables] for name in shared}
    fills = {name: found for name, found in fills.items() if None not in found}
    if any(fill != found[0] for found in fills.values() for fill in found):
        options["missing"] = {name: _mean(found, rows) for name, found in fills.items()}
    return options


def _categorical(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns that are text on some node."""
    found = [name for table in tables for name, plan in table.items() if plan["what"] == "category"]
    return list(dict.fromkeys(found))


def _common(rows: Sequence[list[str]]) -> list[str]:
    """The names that are in all rows, in the order of the first."""
    return [name for name in rows[0] if all(name in row for row in rows)]


def _union(rows: Sequence[Sequence[str]]) -> list[str]:
    """All names that occur, sorted as numbers if all of them are numbers, with `other` last."""
    names = {str(name) for row in rows for name in row}
    numbers = all(name.lstrip("-").replace(".", "", 1).isdigit() for name in names - {OTHER_CATEGORY})
    return sorted(
        names,
        key=lambda name: (name == OTHER_CATEGORY, float(name) if numbers and name != OTHER_CATEGORY else 0.0, name),
    )


def _mean(values: Sequence[float], rows: Sequence[float]) -> float:
    """The mean of the nodes' values, weighted by their rows and rounded to six digits."""
    total = sum(rows) or 1.0
    return float(f"{sum(value * count for value, count in zip(values, rows, strict=True)) / total:.6g}")
