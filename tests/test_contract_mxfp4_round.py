"""mxfp4_round is packing and unpacking without the bytes, and without a wait for the device."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgen.contract import quant
from kgen.contract.rules import same_bits


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@given(seed=st.integers(0, 2**31 - 1), top=st.integers(-140, 120))
def test_mxfp4_round_gives_what_packing_and_unpacking_gives(dtype: torch.dtype, seed: int, top: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(3, 64, generator=generator, dtype=torch.float64) * 2.0**top).to(dtype)
    x[0, :32] = 0
    x[1, 5] = -0.0
    want = quant.mxfp4_unpack(*quant.mxfp4_pack(x), dtype)
    assert same_bits(quant.mxfp4_round(x), want)


def test_mxfp4_round_refuses_what_has_no_blocks() -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        quant.mxfp4_round(torch.zeros(2, 48))
