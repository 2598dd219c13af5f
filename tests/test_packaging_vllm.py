"""kgen installs beside vLLM 0.33.0, by the metadata: the versions that satisfy vLLM satisfy kgen, and all between.

tests/data/vllm-0.33.0.json is what pip resolved for both in one environment. Not covered: that the two run together.
"""

import json
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.checkout import ROOT

DATA = json.loads((ROOT / "tests" / "data" / "vllm-0.33.0.json").read_text())
VERSIONS: dict[str, str] = DATA["versions"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = [Requirement(text) for texts in PROJECT["optional-dependencies"].values() for text in texts]
PINS = {
    "torch": "2.14.0",
    "nvidia-cutlass-dsl": "4.8.0",
    "apache-tvm-ffi": "0.1.11",
    "xgrammar": "0.2.8",
    "outlines-core": "0.2.14",
}


def demands(package: str) -> list[Requirement]:
    return [Requirement(text) for text in DATA["requires"][package]]


def by_name(requirements: list[Requirement]) -> dict[str, Requirement]:
    return {canonicalize_name(r.name): r for r in requirements}


def test_the_data_are_vllms_own_pins() -> None:
    asked = by_name(demands("vllm"))
    assert {name: str(asked[name].specifier) for name in PINS} == {name: f"=={v}" for name, v in PINS.items()}
    assert asked["nvidia-cutlass-dsl"].extras == {"cu13"}
    assert str(asked["openai"].specifier) == ">=2.25.0" and str(asked["pydantic"].specifier) == ">=2.12.0"
    assert not asked["llguidance"].specifier.contains("1.8.0")


@pytest.mark.parametrize("ours", OURS, ids=str)
def test_a_range_of_kgen_admits_the_version_beside_vllm(ours: Requirement) -> None:
    name = canonicalize_name(ours.name)
    assert name in VERSIONS, f"{name} is new: make tests/data/vllm-0.33.0.json again"
    assert ours.specifier.contains(VERSIONS[name])


def test_the_range_of_openai_admits_the_oldest_that_vllm_allows() -> None:
    assert by_name(OURS)["openai"].specifier.contains("2.25.0")


@pytest.mark.parametrize("package", sorted(DATA["requires"]))
def test_no_package_of_that_environment_contradicts_another(package: str) -> None:
    broken = [
        f"{r} but {VERSIONS[canonicalize_name(r.name)]}"
        for r in demands(package)
        if not r.specifier.contains(VERSIONS[canonicalize_name(r.name)], prereleases=True)
    ]
    assert not broken


def test_torch_is_a_range_and_the_makefiles_pin_is_exact() -> None:
    pins = by_name([Requirement(t) for t in (ROOT / "constraints.txt").read_text().splitlines() if t[:1] != "#"])
    assert str(by_name(OURS)["torch"].specifier) == ">=2.11"
    assert str(pins["torch"].specifier) == "==2.13.0"
    for name, pin in pins.items():
        version = str(pin.specifier).removeprefix("==")
        assert by_name([*EXTRAS, *OURS])[name].specifier.contains(version), (
            f"{name} {version} is outside kgen's own range"
        )
