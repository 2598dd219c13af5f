"""Links an object against the launch recorder and runs it in the sandbox: what one call launches, without a GPU.

The object's host code is untrusted: linking and calling happen inside the sandbox, the call under a seccomp filter of
its own (`recorder.c`). Not covered: a launcher that recognises the recorder and forges its lines; the model gate
counts launches again on the GPU, where the object meets the runtime.
"""

import json
import math
import os
import shlex
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kgen.gates.audit.cubin import Cubin
from kgen.gates.audit.object import AuditError
from kgen.gates.builder.outcome import clean
from kgen.gates.sandbox import Box, Level, Limits, run
from kgen.records import Launch, LaunchArg, one_line, sha256_bytes

T = TypeVar("T", int, str)

# contract dtype -> DLPack (type code, bits)
DLPACK = {
    "bf16": (4, 16),
    "f16": (2, 16),
    "f32": (2, 32),
    "i32": (0, 32),
    "i64": (0, 64),
    "u8": (1, 8),
    "e4m3": (10, 8),
}
ADDRESS_BITS = 40  # tensor i starts at (i + 1) << 40: no two are near each other, all are aligned
# cudaLaunchAttribute ids that a launch may carry -> name in the record
COOPERATIVE, CLUSTER, PDL, CLUSTER_POLICY, CARVEOUT = 2, 4, 6, 5, 14
ATTRIBUTES = {COOPERATIVE: "cooperative", PDL: "pdl", CLUSTER_POLICY: "cluster_policy", CARVEOUT: "smem_carveout"}
DESCRIPTOR = 128  # bytes of a TMA descriptor
SECONDS = 30.0
OUTPUT_CAP = 8 << 20
MAX_NAME = 4096  # characters of a kernel's name, as in recorder.c
CC_FAILED = 91
COMPILE_SECONDS = 60


class RecorderError(RuntimeError):
    """Ours or the machine's fault: no C compiler, or the sandbox failed."""


@dataclass(frozen=True)
class Argument:
    """One argument of the exported function: a tensor (dtype, shape) or a scalar ("i32"/"f32", value).

    `pitch`: elements between the entries of a tensor's first dimension; 0: it is compact.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    value: float = 0
    pitch: int = 0

    @property
    def span(self) -> int:
        """Bytes from a tensor's first to its last; 0 for a scalar."""
        if not self.shape:
            return 0
        entry = math.prod(self.shape[1:])
        return ((self.shape[0] - 1) * (self.pitch or entry) + entry) * DLPACK[self.dtype][1] // 8


def find_cc() -> str:
    """Path of a C compiler. Raises RecorderError (one line) without one."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and (found := shutil.which(name)):
            return found
    raise RecorderError("no C compiler here (cc, gcc or clang): install one, e.g. apt-get install gcc libc6-dev")


class Recorder:
    """The compiled recorder, kept in `cache` under the hash of its source. Raises RecorderError without a compiler."""

    def __init__(self, level: Level, cache: Path) -> None:
        self._level, self._cc = level, find_cc()
        source = Path(__file__).with_name("recorder.c")
        self._program = cache / sha256_bytes(source.read_bytes() + self._cc.encode())[:16] / "recorder"
        if not self._program.is_file():
            self._compile(source)

    def _compile(self, source: Path) -> None:
        self._program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._program.parent) as folder:
            made = Path(folder) / "recorder"
            command = [self._cc, "-O2", "-rdynamic", "-o", str(made), str(source), "-ldl"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
            if done.returncode != 0:
                raise RecorderError(f"{self._cc} cannot compile the launch recorder: {clean(done.stderr, 600)}")
            made.chmod(0o755)
            made.rename(self._program)

    def record(self, data: bytes, cubin: Cubin, arguments: Sequence[Argument]) -> tuple[Launch, ...]:
        """Launches of one call, in order. Raises AuditError (the object's fault) or RecorderError (ours)."""
        with tempfile.TemporaryDirectory(prefix="kgen-record-") as parent:
            Path(parent).chmod(0o755)
            folder = Path(parent) / "job"
            folder.mkdir()
            (folder / "kernel.o").write_bytes(data)
            (folder / "kernel.fatbin").write_bytes(cubin.image)
            for file in folder.iterdir():
                file.chmod(0o644)
            self._level.prepare(folder)
            output = self._run(folder, _description(cubin, arguments))
        return decode(output, arguments)

    def _run(self, folder: Path, description: str) -> list[dict[str, Any]]:
        cc, program = shlex.quote(self._cc), shlex.quote(str(self._program))
        link = f"{cc} -shared -nostdlib -Wl,-z,now -o kernel.so kernel.o || exit {CC_FAILED}"
        script = f"{link}; exec {program} ./kernel.so kernel.fatbin"
        read = (str(self._program.parent), str(Path(self._cc).resolve().parent.parent))
        env = {"PATH": f"{Path(self._cc).parent}:/usr/bin:/bin", "TMPDIR": str(folder), "LANG": "C"}
        box = Box(folder, read, env, Limits(cpu_seconds=10))
        done = run(self._level, box, ["/bin/sh", "-c", script], SECONDS, OUTPUT_CAP, description.encode())
        said = done.output.decode("utf-8", "replace")
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{") and _is_json(line)]
        plain = clean("\n".join(line for line in said.splitlines() if not line.startswith("{")), 600)
        if done.returncode == CC_FAILED:
            raise AuditError("audit.link", f"the object does not link: {plain}")
        if done.timed_out or done.truncated:
            raise AuditError("audit.launcher", "the launcher did not return, or launched without end")
        if done.returncode in (2, 4) and plain and not lines:
            raise RecorderError(f"the launch recorder failed: {plain}")
        if done.returncode != 0 or not lines or lines[-1] != {"done": 0}:
            raise AuditError("audit.launcher", _complaint(lines, done.returncode, plain))
        return lines


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _complaint(lines: list[dict[str, Any]], returncode: int, plain: str) -> str:
    for line in lines:
        if "refused" in line:
            return str(line["refused"])
        if "error" in line:
            return f"the launcher refuses the op's own arguments: {line['error']}: {line.get('message', '')}"
    status = returncode - 128 if returncode > 128 else -returncode
    if status == 31:  # SIGSYS
        return "the launcher made a system call: it may only launch"
    return f"the launcher died (status {returncode}): it may only launch, not read tensors or allocate {plain}".strip()


def _description(cubin: Cubin, arguments: Sequence[Argument]) -> str:
    lines = [f"kernel {name} {len(sizes)} {' '.join(map(str, sizes))}" for name, sizes in cubin.parameters.items()]
    for index, argument in enumerate(arguments):
        if argument.shape is not None:
            code, bits = DLPACK[argument.dtype]
            layout = " ".join(map(str, (argument.pitch, len(argument.shape), *argument.shape)))
            lines.append(f"tensor {(index + 1) << ADDRESS_BITS} {code} {bits} {layout}")
        elif argument.dtype == "i32":
            lines.append(f"int {int(argument.value)}")
        else:
            lines.append(f"float {float(argument.value)!r}")
    return "\n".join(lines) + "\n"


def decode(lines: Sequence[dict[str, Any]], arguments: Sequence[Argument]) -> tuple[Launch, ...]:
    """The launches of a call in the recorder's lines, which a launcher may have written to. Raises AuditError."""
    calls: list[list[Launch]] = []
    for line in lines:
        if "call" in line:
            calls.append([])
        elif "launch" in line and calls:
            try:
                calls[-1].append(_launch(line["launch"], arguments))
            except (KeyError, TypeError, ValueError, struct.error) as error:
                why = clean(str(error), 200).replace("\n", " ")
                raise AuditError("audit.launcher", f"the launcher disturbed the recorder's output: {why}") from error
    if len(calls) != 2 or calls[0] != calls[1]:
        raise AuditError("audit.launcher", "two calls with the same arguments do not launch the same")
    return tuple(calls[0])


def _launch(body: dict[str, Any], arguments: Sequence[Argument]) -> Launch:
    attributes, cluster = {}, (1, 1, 1)
    for number, text in body["attributes"]:
        values = struct.unpack("<4i", bytes.fromhex(text))
        if number == CLUSTER:
            cluster = (values[0], values[1], values[2])
        elif number not in ATTRIBUTES:
            raise AuditError("audit.attribute", f"launch attribute {number} is not allowed")
        elif values[0]:
            attributes[ATTRIBUTES[number]] = values[0]
    return Launch(
        kernel=one_line(_typed(body["kernel"], str), MAX_NAME),
        grid=_triple(body["grid"]),
        block=_triple(body["block"]),
        cluster=cluster,
        dynamic_smem=_typed(body["smem"], int),
        attributes=attributes,
        args=tuple(_argument(raw, arguments) for raw in body["args"]),
    )


def _typed(value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__} expected, {type(value).__name__} found")
    return value


def _triple(value: Any) -> tuple[int, int, int]:
    x, y, z = (_typed(n, int) for n in value)
    return x, y, z


def _argument(raw: str, arguments: Sequence[Argument]) -> LaunchArg:
    """A parameter; a TMA descriptor starts with the address it was made for, and its second half is never written."""
    data = bytes.fromhex(raw)
    if len(data) >= 8:
        address = struct.unpack_from("<Q", data)[0]
        index, offset = (address >> ADDRESS_BITS) - 1, address & ((1 << ADDRESS_BITS) - 1)
        if 0 <= index < len(arguments) and offset < arguments[index].span:
            kept = data[: DESCRIPTOR // 2] + bytes(DESCRIPTOR // 2) if len(data) == DESCRIPTOR else data
            return LaunchArg(arguments[index].name, offset, kept.hex())
    return LaunchArg("", 0, raw)
