"""A reference that is unfit to judge is named for what is wrong with it: tiny ops with one defect each."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
import torch

from kgen.contract import selftest
from kgen.contract.rules import Exact, Judged, RelL2
from kgen.contract.tensors import Role, ScalarSpec, TensorSpec
from kgen.ops.moe_shared import MoeShared
from kgen.records import Problem

Values = Mapping[str, Any]
Tensors = dict[str, torch.Tensor]


class Scaled(MoeShared):
    """y = scale * x[pick] + w, with one state that counts up: each kind of argument once."""

    name: ClassVar[str] = "scaled"
    tensors: ClassVar = (
        TensorSpec("x", "f32", ("tokens", "hidden"), Role.IN, "rows"),
        TensorSpec("pick", "i32", ("tokens",), Role.IN, "row to take"),
        TensorSpec("w", "f32", ("hidden",), Role.WEIGHT, "added"),
        TensorSpec("count", "f32", ("tokens",), Role.STATE, "calls"),
        TensorSpec("y", "f32", ("tokens", "hidden"), Role.OUT, "result"),
    )
    scalars: ClassVar = (ScalarSpec("scale", "f32", "factor", other=3.0),)

    def inputs(self, problem: Problem, family: str, seed: int, device: str) -> dict[str, Any]:
        made, sizes = torch.Generator().manual_seed(seed), self.sizes(problem)
        rows, width = sizes["tokens"], sizes["hidden"]
        return {
            "x": torch.randn(rows, width, generator=made),
            "pick": torch.randperm(rows, generator=made).int(),
            "w": torch.randn(width, generator=made),
            "count": torch.rand(rows, generator=made),
            "scale": 2.0,
        }

    def answer(self, values: Values) -> Tensors:
        y = values["scale"] * values["x"][values["pick"].long()] + values["w"]
        return {"y": y, "count": values["count"] + 1}

    def reference(self, problem: Problem, values: Values, rounded: bool) -> Tensors:
        return {name: t.double() for name, t in self.answer(values).items()}

    def stock(self, problem: Problem, compile: Any = None) -> Callable[[Values], Tensors]:
        return lambda values: {name: t.float() for name, t in Scaled.answer(self, values).items()}

    def hard_rules(self, problem: Problem, values: Values, got: Values) -> list[str]:
        return []


def ignoring(name: str) -> type[Scaled]:
    """A reference that takes ones, zeros or its own number for one argument."""

    class Deaf(Scaled):
        def reference(self, problem: Problem, values: Values, rounded: bool) -> Tensors:
            old = self.inputs(problem, "", selftest.SEED, "cpu")[name]
            return super().reference(problem, {**values, name: old}, rounded)

    return Deaf


def complaints(op: MoeShared) -> tuple[str, ...]:
    return selftest.complaints(op)


def test_a_sound_reference_has_no_complaint() -> None:
    assert complaints(Scaled()) == ()


@pytest.mark.parametrize("name", ["x", "pick", "w", "count", "scale"])
def test_every_argument_that_a_reference_ignores_is_named_and_no_other(name: str) -> None:
    assert complaints(ignoring(name)()) == (f"scaled: the reference ignores {name}",)


def test_a_scalar_without_another_value_counts_as_ignored() -> None:
    class Silent(Scaled):
        scalars: ClassVar = (ScalarSpec("scale", "f32", "factor", other=None),)

    assert complaints(Silent()) == ("scaled: the reference ignores scale",)


def test_an_input_that_moves_the_result_by_less_than_ten_floors_counts_as_ignored() -> None:
    def faint(floors: float) -> MoeShared:
        class Faint(Scaled):
            def answer(self, values: Values) -> Tensors:
                got = super().answer(values)
                base = torch.ones_like(got["y"]) * got["y"].norm() / got["y"].numel() ** 0.5
                # x, pick and scale still move y; w moves it by a known part of its norm only
                sign = values["w"].sign()
                return {**got, "y": base + floors * self.floor * base * sign}

        return Faint()

    assert any(line.endswith("ignores w") for line in complaints(faint(2.0)))
    assert not any(line.endswith("ignores w") for line in complaints(faint(20.0)))


def test_zeros_that_pass_are_named_by_their_output_and_states_may_be_zero() -> None:
    class Zero(Scaled):
        def answer(self, values: Values) -> Tensors:
            return {name: 0 * t for name, t in super().answer(values).items()}

        def stock(self, problem: Problem, compile: Any = None) -> Callable[[Values], Tensors]:
            return lambda values: {name: t.float() for name, t in self.answer(values).items()}

    found = complaints(Zero())
    assert "scaled: zeros pass as y" in found
    assert not any("zeros pass as count" in line for line in found)


def test_a_stock_op_that_does_not_pass_is_named_with_the_rules_own_words() -> None:
    class Wrong(Scaled):
        def stock(self, problem: Problem, compile: Any = None) -> Callable[[Values], Tensors]:
            return lambda values: {n: t.float() + (n == "y") for n, t in self.answer(values).items()}

        def rule(self, spec: TensorSpec) -> Any:
            return Exact()

    (line,) = complaints(Wrong())
    assert line == (
        "scaled: the stock op itself does not pass as y: must equal the rounded reference bit for bit, and does not"
    )


def test_a_breach_of_a_hard_rule_is_a_stock_op_that_does_not_pass() -> None:
    class Strict(Scaled):
        def hard_rules(self, problem: Problem, values: Values, got: Values) -> list[str]:
            return ["broken"]

    assert complaints(Strict()) == (
        "scaled: the stock op itself does not pass as count: broken",
        "scaled: the stock op itself does not pass as y: broken",
    )


def test_every_value_of_every_axis_is_examined_unless_the_op_refuses_it() -> None:
    seen = []

    class Axes(Scaled):
        axes: ClassVar = {"a": ("1", "2", "3"), "b": ("x", "y")}

        def refuses(self, problem: Problem) -> str:
            return "no" if problem.axes.get("a") == "3" else ""

        def inputs(self, problem: Problem, family: str, seed: int, device: str) -> dict[str, Any]:
            seen.append((problem.dims, problem.tokens, family, dict(problem.axes)))
            return super().inputs(problem, family, seed, device)

    assert complaints(Axes()) == ()
    points = [{"a": "1", "b": "x"}, {"a": "2", "b": "x"}, {"a": "1", "b": "y"}]
    family = Scaled.families[0].name
    assert seen == [("nano", 8, family, p) for p in points for _ in range(2)]


def test_a_rule_hears_both_references_and_of_one_call() -> None:
    """The rounded one here is farther by one."""

    class Told:
        def judge(self, got: Any, stock: Any, rounded: torch.Tensor, true: torch.Tensor, steps: int) -> Judged:
            fine = torch.equal(rounded, true + 1) and steps == 1
            return Judged(complaint="" if fine and got.any() else "not as agreed")

    class Rounding(Scaled):
        def reference(self, problem: Problem, values: Values, rounded: bool) -> Tensors:
            return {name: t + rounded for name, t in super().reference(problem, values, rounded).items()}

        def rule(self, spec: TensorSpec) -> Any:
            return Told()

    assert complaints(Rounding()) == ()


@pytest.mark.parametrize("name", ["y", "count"])
def test_each_output_has_its_own_rule(name: str) -> None:
    class Own(Scaled):
        def stock(self, problem: Problem, compile: Any = None) -> Callable[[Values], Tensors]:
            return lambda values: {n: t.float() * (1 + 1e-6) for n, t in self.answer(values).items()}

        def rule(self, spec: TensorSpec) -> Any:
            return Exact() if spec.name == name else RelL2(self.floor)

    (line,) = complaints(Own())
    assert line.startswith(f"scaled: the stock op itself does not pass as {name}: must equal")


def test_an_index_need_only_move_the_result_a_little() -> None:
    class Heavy(Scaled):
        def inputs(self, problem: Problem, family: str, seed: int, device: str) -> dict[str, Any]:
            made = super().inputs(problem, family, seed, device)
            return {**made, "w": 20 * made["w"]}

    assert complaints(Heavy()) == ()


def test_what_rounding_moves_is_not_taken_for_what_an_input_moves() -> None:
    class Rounding(ignoring("scale")):  # type: ignore[misc]
        def reference(self, problem: Problem, values: Values, rounded: bool) -> Tensors:
            return {n: t + 1e-9 * rounded for n, t in super().reference(problem, values, rounded).items()}

    assert complaints(Rounding()) == ("scaled: the reference ignores scale",)
