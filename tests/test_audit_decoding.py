"""What the launch recorder is told and what its lines become, without running it: pure functions, by hand."""

import struct
from typing import Any

import pytest

from kgen.gates.audit import recorder
from kgen.gates.audit.cubin import Cubin
from kgen.gates.audit.object import AuditError
from kgen.gates.audit.recorder import Argument
from kgen.records import LaunchArg

GIVEN = (
    Argument("a", "bf16", (4, 8)),
    Argument("s", "f32", None, 2.5),
    Argument("p", "e4m3", (3, 2, 4), pitch=64),
    Argument("n", "i32", None, 5),
)


@pytest.mark.parametrize(
    ("argument", "span"),
    [
        (Argument("x", "bf16", (4, 8)), 4 * 8 * 2),
        (Argument("x", "u8", (4, 8)), 4 * 8),
        (Argument("x", "i64", (5,)), 5 * 8),
        (Argument("x", "f32", (3, 2, 4), pitch=64), (2 * 64 + 8) * 4),
        (Argument("x", "f32", None, 1.0), 0),
        (Argument("x", "f32", ()), 0),
    ],
)
def test_a_tensor_spans_from_its_first_byte_to_its_last(argument: Argument, span: int) -> None:
    assert argument.span == span


def test_arguments_are_described_one_a_line_at_addresses_far_apart() -> None:
    cubin = Cubin(b"", b"", 90, True, (), {"one": (8, 4), "two": ()})
    assert recorder._description(cubin, GIVEN).splitlines() == [
        "kernel one 2 8 4",
        "kernel two 0 ",
        f"tensor {1 << 40} 4 16 0 2 4 8",
        "float 2.5",
        f"tensor {3 << 40} 10 8 64 3 3 2 4",
        "int 5",
    ]
    assert recorder._description(cubin, GIVEN).endswith("int 5\n")


@pytest.mark.parametrize(
    ("dtype", "code", "bits"),
    [("bf16", 4, 16), ("f16", 2, 16), ("f32", 2, 32), ("i32", 0, 32), ("i64", 0, 64), ("u8", 1, 8), ("e4m3", 10, 8)],
)
def test_types_have_the_codes_of_dlpack(dtype: str, code: int, bits: int) -> None:
    assert recorder.DLPACK[dtype] == (code, bits)


def address(number: int, offset: int = 0) -> str:
    return struct.pack("<Q", ((number + 1) << 40) + offset).hex()


@pytest.mark.parametrize(
    ("raw", "name", "offset"),
    [
        (address(0), "a", 0),
        (address(0, 63), "a", 63),  # its last byte
        (address(2, 135), "p", 135),
        (address(0, 64), "", 0),  # behind its end
        (address(1), "", 0),  # a scalar has no address
        (address(4), "", 0),  # behind the last argument
        (address(-1), "", 0),
        ("0500000000000001"[:14], "", 0),  # too short to be an address
        ("05000000", "", 0),
    ],
)
def test_a_parameter_that_points_into_a_tensor_names_it(raw: str, name: str, offset: int) -> None:
    assert recorder._argument(raw, GIVEN) == LaunchArg(name, offset, raw)


def test_of_a_tma_descriptor_the_half_that_is_written_is_kept() -> None:
    head, written, noise = address(2, 3), "ab" * 56, "cd" * 64
    assert recorder._argument(head + written + noise, GIVEN) == LaunchArg("p", 3, head + written + "00" * 64)
    longer = head + "ab" * 121  # 129 bytes: no descriptor
    assert recorder._argument(longer, GIVEN) == LaunchArg("p", 3, longer)


def body(*attributes: tuple[int, str], **changed: Any) -> dict[str, Any]:
    plain = {"kernel": "k", "grid": [4, 1, 1], "block": [64, 2, 1], "smem": 7, "args": [address(0), "05000000"]}
    return {**plain, "attributes": list(attributes), **changed}


def four(*values: int) -> str:
    return struct.pack("<4i", *values, *[0] * (4 - len(values))).hex()


def test_a_launch_is_taken_as_it_was_made() -> None:
    got = recorder._launch(body(), GIVEN)
    assert (got.kernel, got.grid, got.block, got.cluster, got.dynamic_smem) == (
        "k", (4, 1, 1), (64, 2, 1), (1, 1, 1), 7,
    )  # fmt: skip
    assert got.args == (LaunchArg("a", 0, address(0)), LaunchArg("", 0, "05000000")) and got.attributes == {}


def test_attributes_that_are_set_are_named_and_clusters_have_three_sizes() -> None:
    given = ((4, four(2, 3, 4)), (2, four(1)), (6, four(1)), (5, four(2)), (14, four(50)))
    got = recorder._launch(body(*given), GIVEN)
    assert got.cluster == (2, 3, 4)
    assert got.attributes == {"cooperative": 1, "pdl": 1, "cluster_policy": 2, "smem_carveout": 50}
    assert recorder._launch(body((6, four(0, 1))), GIVEN).attributes == {}


@pytest.mark.parametrize("number", [0, 1, 3, 7, 8, 13, 15])
def test_any_other_attribute_is_refused(number: int) -> None:
    with pytest.raises(AuditError, match=f"launch attribute {number} is not allowed") as caught:
        recorder._launch(body((number, four(0))), GIVEN)
    assert caught.value.code == "audit.attribute"


CALL: dict[str, Any] = {"call": 0}


def launch(kernel: str) -> dict[str, Any]:
    return {"launch": body(kernel=kernel)}


def test_two_equal_calls_give_the_launches_of_one() -> None:
    lines = [launch("before"), CALL, launch("x"), launch("y"), CALL, launch("x"), {"note": 1}, launch("y")]
    assert [made.kernel for made in recorder.decode(lines, GIVEN)] == ["x", "y"]
    assert recorder.decode([CALL, CALL], GIVEN) == ()


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [CALL, launch("x")],
        [CALL, launch("x"), CALL, launch("x"), CALL, launch("x")],
        [CALL, launch("x"), CALL, launch("y")],
        [CALL, launch("x"), CALL],
    ],
)
def test_calls_that_differ_are_the_launchers_fault(lines: list[dict[str, Any]]) -> None:
    with pytest.raises(AuditError, match="do not launch the same") as caught:
        recorder.decode(lines, GIVEN)
    assert caught.value.code == "audit.launcher"


@pytest.mark.parametrize(
    ("lines", "returncode", "says"),
    [
        ([{"call": 0}, {"refused": "no"}, {"error": "e"}], 0, "no"),
        ([{"error": "bad", "message": "words"}], 0, "the launcher refuses the op's own arguments: bad: words"),
        ([{"error": "bad"}], 0, "the launcher refuses the op's own arguments: bad: "),
        ([], -31, "the launcher made a system call: it may only launch"),
        ([], 128 + 31, "the launcher made a system call: it may only launch"),
        ([], -11, "the launcher died (status -11): it may only launch, not read tensors or allocate said"),
        ([], 139, "the launcher died (status 139): it may only launch, not read tensors or allocate said"),
        ([], 1, "the launcher died (status 1): it may only launch, not read tensors or allocate said"),
        ([], 128, "the launcher died (status 128): it may only launch, not read tensors or allocate said"),
    ],
)
def test_why_a_launcher_failed_is_said_in_one_line(lines: list[dict[str, Any]], returncode: int, says: str) -> None:
    assert recorder._complaint(lines, returncode, "said") == says


@pytest.mark.parametrize(
    ("line", "is_one"),
    [("{}", True), ('{"a": 1}', True), ("{", False), ("[1]", False), ("1", False), ("[" * 9999, False)],
)
def test_only_an_object_is_a_line_of_the_record(line: str, is_one: bool) -> None:
    assert recorder._is_json(line) is is_one


def test_the_limits_of_a_recording_are_as_documented() -> None:
    assert (recorder.SECONDS, recorder.OUTPUT_CAP, recorder.CC_FAILED, recorder.COMPILE_SECONDS) == (
        30.0, 8 << 20, 91, 60,
    )  # fmt: skip
