"""Nodes whose examples are unlike are told apart, and what they are told to type makes them alike."""

import re

import pytest

from corymb.data import from_folder
from corymb.engines.agreement import same_schema
from corymb.settings import InvalidInput

LONG = [f"column-{i}" for i in range(40)]
MINE = {"task": "classification", "classes": ("no", "yes"), "feature_names": ("a", "b"), "features": (2,)}
MINE |= {"preparation": {"scale": "standard", "top": 1, "columns": ()}}


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"classes": ("no",)}, r"classes is \('no', 'yes'\) and \('no',\).* add classes=\['no', 'yes'\]\."),
        ({"feature_names": ("b", "a")}, r"feature_names is .* add features=\['a', 'b'\]"),
        ({"feature_names": ("a", "b", "x"), "features": (3,)}, r"feature_names is .*'x'.* add features=\['a', 'b'\]"),
        ({"feature_names": (*LONG, "glucose")}, r"2 names with \['a', 'b'\] and 41 names with .*'column-0'"),
        ({"task": "regression", "classes": ()}, "task is classification and regression.* Say task='classification' or"),
        ({"features": (3,)}, r"the shape \[2\] and \[3\]\. Prepare all nodes' data by the same steps"),
        ({"preparation": {"scale": "none", "top": 1, "columns": ()}}, "scale is 'standard' and 'none'. Say scale=…"),
        ({"preparation": {"columns": [7]}}, "one of their schemas cannot be read: install the same version"),
    ],
)
def test_nodes_with_different_schemas_are_named_with_a_remedy(other, says):
    hellos = [{"name": "one", "schema": MINE}, {"name": "two", "schema": MINE | other}]
    with pytest.raises(InvalidInput, match=says) as refused:
        same_schema(hellos)
    assert "\n" not in str(refused.value)


def site(folder, header, *rows, clients=3):
    """A folder with a file for each of some clients, all with the same rows."""
    folder.mkdir()
    for client in range(clients):
        (folder / f"{folder.name}-{client}.csv").write_text("\n".join([header, *rows, *rows]) + "\n")
    return folder


def schemas(folders, **options):
    found = [from_folder(folder, label="label", test=0, **options) for folder in folders]
    return [
        {"name": folder.name, "schema": data.schema, "sizes": data.sizes}
        for folder, data in zip(folders, found, strict=True)
    ]


def told(folders, **options):
    """What is said of nodes with these folders, and the options that it says to type."""
    with pytest.raises(InvalidInput) as refused:
        same_schema(schemas(folders, **options))
    line = str(refused.value)
    assert "\n" not in line
    typed = re.search(r" add (.*[\]}])\. Then start them again", line)
    return line, eval(f"dict({typed[1]})")  # noqa: S307 - what a user would paste


def test_the_suggested_options_fix_categories_that_only_some_nodes_have(tmp_path):
    folders = [
        site(tmp_path / "a", "age,city,label", "1,Bonn,no", "2,Aachen,yes"),
        site(tmp_path / "b", "age,city,label", "3,Aachen,no", "4,Köln,yes"),
    ]
    line, options = told(folders)
    assert "column 'city' has the categories ['Aachen', 'Bonn'] and ['Aachen', 'Köln']" in line
    assert options == {"categories": {"city": ["Aachen", "Bonn", "Köln"]}}
    agreed = same_schema(schemas(folders, **options))
    assert agreed["feature_names"] == ("age", "city=Aachen", "city=Bonn", "city=Köln")


def test_a_text_column_that_a_node_could_not_use_is_kept_by_its_categories(tmp_path):
    folders = [
        site(tmp_path / "a", "age,city,label", "1,Bonn,no", "2,Aachen,yes"),
        site(tmp_path / "b", "age,city,label", "3,Köln,no", "4,Köln,yes", clients=2),
    ]
    other = (folders[1] / "b-0.csv").read_text().replace("Köln", "Trier")
    (folders[1] / "b-0.csv").write_text(other)  # no town is in two files: none is common
    line, options = told(folders)
    assert "columns that only one has are ['city'] and []" in line
    assert options == {"features": ["age", "city"], "categories": {"city": ["Aachen", "Bonn"]}}
    assert same_schema(schemas(folders, **options))["feature_names"] == ("age", "city=Aachen", "city=Bonn")


def test_columns_classes_and_what_stands_for_missing_cells(tmp_path):
    folders = [
        site(tmp_path / "a", "bmi,age,glucose,label", ",1,5,no", "20,,5,maybe", "22,3,5,no"),
        site(tmp_path / "b", "age,bmi,label", ",30,no", "7,32,yes", "9,,yes", clients=1),
    ]
    line, options = told(folders, missing="mean")
    assert "columns that only one has are ['glucose'] and []" in line
    assert "missing cells are taken, in column 'bmi' as 21 and 31, in 'age' as 2 and 8" in line
    assert options["features"] == ["bmi", "age"]
    assert options["classes"] == ["maybe", "no", "yes"]
    assert options["missing"] == {"bmi": 23.5, "age": 3.5}  # 18 rows say the one, 6 the other
    agreed = same_schema(schemas(folders, **options))
    assert (agreed["feature_names"], agreed["classes"]) == (("bmi", "age"), ("maybe", "no", "yes"))
    assert [plan["fill"] for plan in agreed["preparation"]["columns"]] == [23.5, 3.5]


def test_a_column_of_numbers_here_and_text_there_is_text_everywhere(tmp_path):
    folders = [
        site(tmp_path / "a", "age,ward,label", "1,4,no", "2,5,yes"),
        site(tmp_path / "b", "age,ward,label", "3,north,no", "4,5,yes", "4,north,yes"),
    ]
    line, options = told(folders)
    assert "column 'ward' is a number and a category" in line
    assert options == {"categories": {"ward": ["5", "north"]}}
    hellos = schemas(folders, **options)
    assert same_schema(hellos)["feature_names"] == ("age", "ward=5", "ward=north")
    assert any("6 cells ('4') are of no category that was named" in note for note in same_schema(hellos)["notes"])


def test_the_remedy_is_shown_even_with_many_differences(tmp_path):
    names = [f"town_{number}" for number in range(9)]
    folders = [
        site(tmp_path / "a", ",".join([*names, "label"]), ",".join(["x"] * 9 + ["no"]), ",".join(["y"] * 9 + ["yes"])),
        site(tmp_path / "b", ",".join([*names, "label"]), ",".join(["x"] * 9 + ["no"]), ",".join(["z"] * 9 + ["yes"])),
    ]
    line, options = told(folders)
    assert "; and 5 more. Where all" in line
    assert options["categories"] == {name: ["x", "y", "z"] for name in names}
