"""Publishing promoted kernels: a folder for the Hugging Face `kernels` package, or a wheel for serving hosts."""

from kgen.export.hf_kernels import hf_kernels
from kgen.export.part import NothingToExport
from kgen.export.wheel import wheel

__all__ = ["NothingToExport", "hf_kernels", "wheel"]
