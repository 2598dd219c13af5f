"""What a job writes while it runs: where it is, records, and tensors as raw bytes."""

import contextlib
import ctypes
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

ALIGN = 64


class CandidateFault(Exception):
    """The candidate's own call failed; the message is what CUDA or tvm-ffi said."""


class Out:
    """The files of one job folder: `at`, `records.jsonl`, `tensors.bin`, `result.json`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._records = (folder / "records.jsonl").open("w")
        self._tensors = (folder / "tensors.bin").open("wb")

    def at(self, where: str, candidate: bool = False) -> None:
        """Leave word of what comes next; `candidate`: from here on a death is the candidate's."""
        (self.folder / "at").write_text(json.dumps({"where": where, "candidate": candidate}))

    @contextlib.contextmanager
    def candidate(self, where: str, device: str) -> Iterator[None]:
        """Round a candidate's calls: waits for the device, and blames what fails in there on the candidate."""
        self.at(where, candidate=True)
        try:
            yield
            if device != "cpu":
                torch.cuda.synchronize()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError) as error:  # tvm-ffi raises all three; CUDA the first
            raise CandidateFault(f"{where}: {str(error).strip().splitlines()[0][:500]}") from error
        self.at(f"after {where}")

    def record(self, value: Mapping[str, Any]) -> None:
        """Leave a record, and before it the tensors that it refers to: a death later on takes neither away."""
        self._tensors.flush()
        self._records.write(json.dumps(value) + "\n")
        self._records.flush()

    def tensor(self, value: torch.Tensor) -> dict[str, Any]:
        """Append the bytes of a tensor and return the reference to them."""
        host = value.detach().to("cpu").contiguous()
        nbytes = host.numel() * host.element_size()
        self._tensors.write(b"\0" * (-self._tensors.tell() % ALIGN))
        offset = self._tensors.tell()
        if nbytes:
            self._tensors.write((ctypes.c_char * nbytes).from_address(host.data_ptr()))
        return {
            "offset": offset,
            "nbytes": nbytes,
            "dtype": str(host.dtype).removeprefix("torch."),
            "shape": list(host.shape),
        }

    def finish(self, result: Mapping[str, Any]) -> None:
        self._records.close()
        self._tensors.close()
        (self.folder / "result.tmp").write_text(json.dumps(result))
        (self.folder / "result.tmp").rename(self.folder / "result.json")
