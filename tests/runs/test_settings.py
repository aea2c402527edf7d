"""An option of a run, or of its data, is written once: everything else follows from the fields of a dataclass."""

import inspect
import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest

import corymb
from corymb.cli import Exit
from corymb.cli.app import main
from corymb.cli.options import field_texts
from corymb.cli.request import Request
from corymb.core.snapshot import Algorithm
from corymb.data import from_folder, load
from corymb.data.catalogue import DEALT
from corymb.local import Descent
from corymb.runs.fit import fit
from corymb.runs.folder.reader import read_config
from corymb.runs.settings import DataOptions, Deal, FitOptions, RunSettings
from corymb.settings import InvalidInput
from tests.runs import small

FAST = corymb.IFCA(k=2, rounds=2, local=Descent(lr=0.3, steps=2))
OTHER = RunSettings(
    seed=3,
    engine="loop",
    device="cpu",
    precision="float64",
    threads=1,
    memory=10**6,
    evaluate_every=1,
    checkpoint_every=2,
    min_replies=2,
    dropout="off",
    class_weight="balanced",
    label_smoothing=0.1,
    metric="auc",
    keep_going=True,
)
"""No default but for the kernel, which the loop engine does not take."""


def names(kind) -> set[str]:
    return {field.name for field in fields(kind)}


OF_FILES = names(DataOptions) - {"deal"}


def options_in_help(line: str, group: str, capsys) -> set[str]:
    assert main([*line.split(), "--help"]) == 0
    _, _, rest = capsys.readouterr().out.partition(f"─ {group} ─")
    return set(re.findall(r"^│ --([a-z_]+)", rest.partition("╰")[0], re.MULTILINE))


def test_the_command_line_has_the_fields_as_options(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    for line in ("run", "run digits ifca"):
        assert options_in_help(line, "The run", capsys) == names(RunSettings) | names(FitOptions)
        check_data_options_in_help(line, capsys)
    check_data_options_in_help("data show", capsys)


def check_data_options_in_help(line, capsys):
    assert options_in_help(line, "Your own data", capsys) == OF_FILES
    main([*line.split(), "--help"])
    assert set(re.findall(r"--deal\.([a-z_]+)", capsys.readouterr().out)) == names(Deal)


def test_every_field_has_a_help_text():
    for kind in (RunSettings, DataOptions, Deal, FitOptions):
        assert all(field_texts(kind).get(name) for name in names(kind))


def test_fit_takes_the_fields_as_keywords_and_repeats_none():
    written = inspect.signature(fit).parameters
    assert names(RunSettings).isdisjoint(written)
    assert names(FitOptions) < set(written)
    assert {field.name: getattr(RunSettings(), field.name) for field in fields(RunSettings)} == {
        name: getattr(RunSettings().updated({name: getattr(RunSettings(), name)}), name) for name in names(RunSettings)
    }
    run = fit(FAST, small.arrays(), settings=OTHER)
    as_keywords = fit(FAST, small.arrays(), **{name: getattr(OTHER, name) for name in names(RunSettings)})
    assert as_keywords.config == run.config
    assert fit(FAST, small.arrays(), settings=OTHER, seed=5).config == {
        **fit(FAST, small.arrays(), settings=replace(OTHER, seed=5)).config
    }


def test_config_toml_has_the_fields_and_resuming_obeys_them(tmp_path):
    with pytest.raises(ZeroDivisionError):
        fit(FAST, small.arrays(), settings=OTHER, out=tmp_path / "run", progress=lambda row: 1 // 0)
    config = read_config(tmp_path / "run")
    asked = {name: getattr(OTHER, name) for name in names(RunSettings)}
    assert {name: config[name] for name in asked if name in config} == {k: v for k, v in asked.items() if v is not None}
    assert RunSettings.recorded(config) == OTHER
    assert RunSettings.recorded({**config, "kernel": "fused"}).kernel == "fused"
    resumed = fit(FAST, small.arrays(), resume=tmp_path / "run")
    assert {name: resumed.config[name] for name in asked} == asked


def test_data_options_are_recorded_and_read_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small.folder(tmp_path / "clinic")
    line = "run clinic fedavg --rounds 1 --label outcome --test 0.4 --task classification --client dose --out run -q"
    assert (
        main(
            [
                *line.split(),
                "--features",
                "age",
                "--missing",
                "median",
                "--scale",
                "standard",
                "--read_limit",
                "1000000",
            ]
        )
        == 0
    )
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    given = DataOptions(
        label="outcome",
        test=0.4,
        task="classification",
        client="dose",
        features="age",
        missing="median",
        scale="standard",
        read_limit=1_000_000,
    )
    assert DataOptions.recorded(config) == Request.read(config).data_options == given
    assert given.given().keys() == OF_FILES


def test_how_data_are_dealt_is_recorded_and_obeyed_again(tmp_path, capsys):
    line = "run digits-dirichlet ifca --k 2 --rounds 2 --deal.clients 6 --deal.alpha 0.2 --max_seconds 0 -q"
    assert main([*line.split(), "--out", str(tmp_path / "run")]) in (0, Exit.INTERRUPTED)
    config = read_config(tmp_path / "run")
    assert config["deal"] == {"clients": 6, "alpha": 0.2}
    given = DataOptions(deal=Deal(clients=6, alpha=0.2))
    assert DataOptions.recorded(config) == Request.read(config).data_options == given
    assert "--deal.clients 6 --deal.alpha 0.2" in " ".join(capsys.readouterr().out.split())
    assert main(["resume", str(tmp_path / "run"), "-q"]) == 0
    assert len(corymb.Run.load(tmp_path / "run").labels) == 6
    with pytest.raises(InvalidInput, match="deal"):
        DataOptions.recorded({**config, "deal": 3})


def test_data_options_are_those_that_load_takes():
    in_python = {"path", "seed", "classes", "categories"}  # the last two are for nodes, which read in Python
    assert set(inspect.signature(from_folder).parameters) - in_python == OF_FILES
    assert "seed" in inspect.signature(load).parameters
    assert set(DEALT) == names(Deal)


def test_the_docs_name_every_option():
    docs = Path(__file__).parents[2] / "docs"
    started, line = ((docs / f"{page}.md").read_text() for page in ("getting-started", "command-line"))
    assert all(f"| `{name}` |" in started for name in names(RunSettings))
    assert all(f"--{name}" in line for name in names(RunSettings) | OF_FILES | names(FitOptions))
    assert all(f"--deal.{name}" in line for name in names(Deal))


def test_an_unknown_option_is_refused_with_a_suggestion():
    for wrong, meant in (("sede", "seed"), ("evaluate_evry", "evaluate_every"), ("reusme", "resume")):
        with pytest.raises(InvalidInput, match=f"fit has no option '{wrong}'. Did you mean '{meant}'"):
            fit(FAST, small.arrays(), **{wrong: 1})


def test_an_option_of_reading_data_is_refused_with_where_it_goes():
    said = r"fit has no option 'client'. It is an option of reading data, such as .*from_dataframe\(frame, client=...\)"
    with pytest.raises(InvalidInput, match=said):
        fit(FAST, small.arrays(), client="site")


WRONG = {
    "engine": "lop",
    "device": "gpu",
    "seed": -1,
    "precision": "float16",
    "kernel": "fast",
    "dropout": "of",
    "class_weight": "yes=0",
    "label_smoothing": 1.0,
    "threads": 0,
    "memory": 0,
    "evaluate_every": -1,
    "checkpoint_every": 0,
    "min_replies": 0,
}


@pytest.mark.parametrize(("name", "value"), WRONG.items())
def test_values_are_checked_where_the_option_is_defined(name, value):
    with pytest.raises(InvalidInput, match=name):
        RunSettings(**{name: value})


def test_data_are_dealt_by_no_negative_seed():
    with pytest.raises(InvalidInput, match="seed must not be negative, got -1: give 0 or more"):
        DataOptions().load("digits", -1)


def test_evaluate_every_may_be_none_or_zero():
    assert RunSettings().updated({"evaluate_every": None}).evaluate_every == 0


def test_the_algorithm_protocol_has_no_options_of_the_run():
    assert names(RunSettings).isdisjoint(vars(Algorithm))
