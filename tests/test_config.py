"""Settings: flags before environment before files before defaults, with their origin; strict, and without secrets."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from support.loops import called

from kgen.config import ROLES, Config, ConfigError, load
from kgen.config.keys import ENDPOINT, MODEL, PRICES
from kgen.proposers import SetupError
from kgen.proposers.endpoint import Endpoint
from kgen.proposers.models import Models

FILE = """
[endpoint]
base_url = "http://127.0.0.1:8000/v1"
stream = true
[models.default]
model = "strong"
temperature = 0.25
[models.repair]
model = "small"
api = "responses"
reasoning_effort = "low"
max_tokens = 4000
[prices.small]
prompt = 0.1
cached = 0.01
completion = 0.4
[prices."strong"]
prompt = 2
completion = 8
"""


def folder(path: Path, text: str = FILE) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "kgen.toml").write_text(text)
    return path


def origin(config: Config, key: str) -> tuple[Any, str]:
    return next((value, where) for name, value, where in config.rows() if name == key)


def test_the_strongest_layer_that_has_a_value_gives_it(tmp_path: Path) -> None:
    # every subset of the four layers, against the order written down here once more
    order = ("flag", "environment", "file", "user")
    for chosen in itertools.chain.from_iterable(itertools.combinations(order, n) for n in range(5)):
        home, here = tmp_path / f"home-{'-'.join(chosen)}", tmp_path / f"here-{'-'.join(chosen)}"
        here.mkdir()
        if "file" in chosen:
            folder(here, '[models.design]\nmodel = "file"\n')
        if "user" in chosen:
            folder(home / ".config" / "kgen", '[models.design]\nmodel = "user"\n')
        env = {"HOME": str(home), **({"KGEN_MODEL": "environment"} if "environment" in chosen else {})}
        config = load(env, here, ["models.design.model=flag"] if "flag" in chosen else [])
        expected = next((layer for layer in order if layer in chosen), "gpt-5.2")
        value, where = origin(config, "models.design.model")
        assert value == config.model("design").model == expected
        places = {"file": str(here / "kgen.toml"), "user": str(home / ".config/kgen/kgen.toml"), "gpt-5.2": "default"}
        assert where == places.get(expected, {"environment": "environment: KGEN_MODEL"}.get(expected, "flag"))


def test_each_role_has_its_own_model_and_the_rest_from_the_default(tmp_path: Path) -> None:
    config = load({}, folder(tmp_path))
    design, repair, optimise = (config.model(role) for role in ROLES)
    assert (design.model, design.api, design.temperature, design.max_tokens) == ("strong", "chat", 0.25, 32_000)
    assert (repair.model, repair.api, repair.temperature, repair.reasoning_effort) == (
        "small",
        "responses",
        0.25,
        "low",
    )
    assert optimise == type(optimise)(**{**vars(design), "role": "optimise"})
    assert (repair.price_in, repair.price_cached, repair.price_out) == (0.1, 0.01, 0.4)
    assert (design.price_in, design.price_cached, design.price_out) == (2.0, None, 8.0)


def test_a_variable_counts_for_every_role(tmp_path: Path) -> None:
    config = load({"KGEN_MODEL": "one", "KGEN_PRICE_OUT": "3"}, folder(tmp_path))
    assert {config.model(role).model for role in ROLES} == {"one"}
    assert {config.model(role).price_out for role in ROLES} == {3.0}


WRONG: tuple[tuple[str, str], ...] = (
    ("x = 1", "stands outside the tables"),
    ("[models.desing]\nmodel = 'a'", "unknown role 'desing'"),
    ("[models.design]\ntemprature = 1", "has no key 'temprature'"),
    ("[model]\nname = 'a'", "unknown table ['model']"),
    ("[endpoint]\napi_key = 'sk-misplaced-0123456789'", "keys do not live in files"),
    ("[endpoint]\nkey_env = 'sk-misplaced-0123456789'", "ends in _API_KEY"),
    ("[endpoint]\nkey_env = 'HOME'", "ends in _API_KEY"),
    ("[endpoint]\nbase_url = 'http://u:sk-misplaced@h/v1'", "plain URL"),
    ("[endpoint]\nbase_url = 'http://h/v1?key=sk-misplaced'", "plain URL"),
    ("[endpoint]\nstream = 'yes'", "must be true or false"),
    ("[models.design]\ntemperature = 3", "must be a number from 0 to 2"),
    ("[models.design]\ntemperature = true", "must be a number from 0 to 2"),
    ("[models.design]\ntemperature = nan", "must be a number from 0 to 2"),
    ("[models.design]\nmax_tokens = 1000.5", "must be a number from 256"),
    ("[models.design]\napi = 'completions'", "must be one of chat, responses"),
    ("[models.design]\nmodel = ''", "not empty"),
    ("[models]\nmodel = 'a'", "is not a key"),
    ("[endpoint.inner]\nbase_url = 'http://h'", "has no key 'inner'"),
    ("[prices.m]\nprompt = -1", "must be a number from 0"),
    ("[prices.m]\noutput = 1", "has no key 'output'"),
    ("[models.design", "Expected"),
    ('a = "\\ud800"', "kgen.toml"),
)


@pytest.mark.parametrize(("text", "says"), WRONG, ids=[text for text, _ in WRONG])
def test_what_is_wrong_in_a_file_is_one_line_that_names_it_and_no_value(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load({}, folder(tmp_path, text))
    line = str(caught.value)
    assert says in line and "kgen.toml" in line and "\n" not in line
    assert "misplaced" not in line


@pytest.mark.parametrize("data", [b"\xff\xfe", b"#" * ((1 << 20) + 1), b"a = " + b"[" * 20_000])
def test_a_file_that_is_none_is_one_line(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "kgen.toml").write_bytes(data)
    with pytest.raises(ConfigError, match=r"kgen\.toml") as caught:
        load({}, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("models.repair.model", "KEY=VALUE"),
        ("models.repair.modle=x", "no key 'modle'"),
        ("models.repair.max_tokens=7", "from 256"),
        ("endpoint.stream=perhaps", "must be one of"),
        ("nothing=x", "unknown table"),
    ],
)
def test_a_wrong_flag_is_one_line(flag: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load({}, None, [flag])


def test_a_name_with_dots_has_its_price(tmp_path: Path) -> None:
    config = load({}, folder(tmp_path, '[models.default]\nmodel = "gpt-5.2"\n[prices."gpt-5.2"]\nprompt = 1\n'))
    assert config.model("design").price_in == 1.0
    assert load({}, None, ["prices.gpt-5.2.prompt=7"]).model("design").price_in == 7.0


def test_an_empty_variable_is_none() -> None:
    assert load({"KGEN_MODEL": "", "KGEN_TEMPERATURE": " "}).model("design").model == "gpt-5.2"


def test_the_key_comes_from_the_variable_that_the_file_names(tmp_path: Path) -> None:
    config = load({}, folder(tmp_path, '[endpoint]\nkey_env = "LOCAL_API_KEY"\n'))
    assert Endpoint.of(config, {"LOCAL_API_KEY": "k" * 9, "OPENAI_API_KEY": "o" * 9}).api_key == "k" * 9
    with pytest.raises(SetupError, match="LOCAL_API_KEY"):
        Endpoint.of(config, {"OPENAI_API_KEY": "o" * 9})


def test_roles_that_ask_alike_share_a_chat(tmp_path: Path) -> None:
    models = Models.of(load({}, folder(tmp_path)), {"OPENAI_API_KEY": "k" * 9})
    assert models.chat("propose.md") is models.chat("optimise.md") is models.chat("restart.md")
    assert models.chat("repair.md").endpoint.model == "small"
    assert models.line == "models strong (design), small (repair), strong (optimise) at http://127.0.0.1:8000/v1"


def test_every_key_is_shown_with_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    monkeypatch.chdir(folder(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-never-shown-0123")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://user:pw-never-shown@h/v1")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert called(["config", "--json", "--config", "models.optimise.temperature=1.5"]) == 0
    said = capsys.readouterr().out
    values = json.loads(said)["values"]
    assert "never-shown" not in said
    assert values["OPENAI_API_KEY"]["value"] == "set"
    assert values["endpoint.base_url"] == {"value": "http://h/v1", "origin": "environment: OPENAI_BASE_URL"}
    assert values["models.optimise.temperature"] == {"value": 1.5, "origin": "flag"}
    assert values["models.repair.model"] == {"value": "small", "origin": str(tmp_path / "kgen.toml")}
    keys = {f"endpoint.{n}" for n in ENDPOINT} | {f"models.{r}.{n}" for r in ROLES for n in MODEL}
    keys |= {f"prices.{m}.{n}" for m in ("strong", "small") for n in PRICES}
    assert set(values) - {"OPENAI_API_KEY"} == keys


def test_a_wrong_file_ends_a_command_with_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder(tmp_path, "[models.design]\ntemprature = 1\n"))
    assert called(["config"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
