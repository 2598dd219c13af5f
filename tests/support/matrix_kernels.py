"""CuTe DSL kernels that use the tensor cores, matrix copies and TMA: what the compiler emits for them on sm_90a.

    python tests/support/matrix_kernels.py FOLDER [PATTERN]

compiles those whose name matches and prints "name<TAB>instruction" a line. The numbers they compute mean nothing.
"""

import os
import re
import sys
from collections.abc import Iterator
from typing import Any

os.environ["CUTE_DSL_ARCH"] = "sm_90a"
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as hopper
from cutlass import BFloat16, Float8E4M3FN, Float8E5M2, Float16, Float32, Int8, Int16, Int32, Int64, TFloat32, Uint8
from cutlass.cute.nvgpu import cpasync, warp, warpgroup
from cutlass.cute.nvgpu.common import OperandMajorMode
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

INSTRUCTION = re.compile(
    r"\b((?:mma\.sync|wgmma|ldmatrix|stmatrix|movmatrix|cp\.async\.bulk\.(?:prefetch\.)?tensor|cp\.reduce)[\w.:]*)"
)


def row_major(dtype: Any, shape: tuple[int, ...]) -> Any:
    return make_fake_compact_tensor(dtype, shape, stride_order=tuple(range(len(shape)))[::-1], assumed_align=16)


class WarpMma:
    def __init__(self, op: Any, k: int, operands: Any, result: Any) -> None:
        self.op, self.k, self.operands, self.result = op, k, operands, result

    @cute.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, mma: cute.TiledMma):
        thread, _, _ = cute.arch.thread_idx()
        mine = mma.get_slice(thread)
        ga, gb, gc = mine.partition_A(a), mine.partition_B(b), mine.partition_C(c)
        ra, rb, rc = mma.make_fragment_A(ga), mma.make_fragment_B(gb), mma.make_fragment_C(gc)
        cute.autovec_copy(ga, ra)
        cute.autovec_copy(gb, rb)
        rc.fill(0.0)
        cute.gemm(mma, rc, ra, rb, rc)
        cute.autovec_copy(rc, gc)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, stream: cuda.CUstream):
        self.kernel(a, b, c, cute.make_tiled_mma(self.op)).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)

    def tensors(self) -> tuple[Any, ...]:
        shapes = ((16, self.k), self.operands), ((8, self.k), self.operands), ((16, 8), self.result)
        return tuple(row_major(dtype, shape) for shape, dtype in shapes)


class MatrixCopy:
    def __init__(self, count: int, trans: bool, store: bool) -> None:
        self.store, self.stride = store, (1, 32) if trans else (64, 1)
        self.op = (warp.StMatrix8x8x16bOp if store else warp.LdMatrix8x8x16bOp)(trans, count)

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        layout = cute.make_layout((32, 64), stride=self.stride)
        tile = cutlass.memory.SmemAllocator().allocate_tensor(BFloat16, layout, byte_alignment=128)
        atom = cute.make_copy_atom(self.op, BFloat16)
        mma = cute.make_tiled_mma(warp.MmaF16BF16Op(BFloat16, Float32, (16, 8, 16)))
        for i in cutlass.range_constexpr(64):
            tile[(thread, i)] = x[i * 32 + thread]
        cute.arch.sync_threads()
        if cutlass.const_expr(self.store):
            part = cute.local_tile(tile, (16, 32), (0, 0))
            copy = cute.make_tiled_copy_C(atom, mma)
            mine = copy.get_slice(thread)
            sums = mma.make_fragment_C(mma.get_slice(thread).partition_C(part))
            narrow = cute.make_rmem_tensor_like(sums, BFloat16)
            narrow.fill(1.0)
            cute.copy(copy, mine.retile(narrow), mine.partition_D(part))
        else:
            part = cute.local_tile(tile, (16, 64), (0, 0))
            copy = cute.make_tiled_copy_A(atom, mma)
            mine = copy.get_slice(thread)
            held = mma.make_fragment_A(mma.get_slice(thread).partition_A(part))
            cute.copy(copy, mine.partition_S(part), mine.retile(held))
            flat = cute.make_tensor(held.iterator, cute.make_layout(32))
            cute.autovec_copy(flat, cute.local_tile(y, (32,), (thread,)))
        cute.arch.sync_threads()
        for i in cutlass.range_constexpr(64):
            y[i * 32 + thread] = tile[(thread, i)]

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
        self.kernel(x, y).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)

    def tensors(self) -> tuple[Any, ...]:
        return row_major(BFloat16, (2048,)), row_major(BFloat16, (2048,))


class GroupMma:
    def __init__(self, operands: Any, result: Any, n: int, kinds: tuple[Any, Any], in_registers: bool = False) -> None:
        self.operands, self.result, self.n, self.in_registers = operands, result, n, in_registers
        self.k, self.kinds = 128 if operands.width == 8 else 64, kinds
        self.major = tuple(OperandMajorMode.MN if "MN" in kind.name else OperandMajorMode.K for kind in kinds)
        self.source = warpgroup.OperandSource.RMEM if in_registers else warpgroup.OperandSource.SMEM

    @cute.kernel
    def kernel(
        self, x: cute.Tensor, y: cute.Tensor, mma: cute.TiledMma, a: cute.ComposedLayout, b: cute.ComposedLayout
    ):
        thread, _, _ = cute.arch.thread_idx()
        memory = cutlass.memory.SmemAllocator()
        sa = memory.allocate_tensor(self.operands, a.outer, byte_alignment=1024, swizzle=a.inner)
        sb = memory.allocate_tensor(self.operands, b.outer, byte_alignment=1024, swizzle=b.inner)
        mine = mma.get_slice(thread)
        gy = mine.partition_C(y)
        sums = mma.make_fragment_C(gy)
        for i in cutlass.range_constexpr(16):
            sa[(thread % 64, i)] = x[i * 128 + thread]
            sb[(thread % 8, i)] = x[i * 128 + thread]
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_threads()
        rb = mma.make_fragment_B(mine.partition_B(sb))
        part = mine.partition_A(sa)
        ra = mma.make_fragment_A(part)
        if cutlass.const_expr(self.in_registers):
            cute.autovec_copy(part, ra)
        warpgroup.fence()
        mma.set(warpgroup.Field.ACCUMULATE, False)
        for k in cutlass.range_constexpr(cute.size(ra, mode=[2])):
            cute.gemm(mma, sums, ra[(None, None, k)], rb[(None, None, k)], sums)
            mma.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        cute.autovec_copy(sums, gy)

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
        ka, kb = self.kinds
        a = cute.tile_to_shape(warpgroup.make_smem_layout_atom(ka, self.operands), (64, self.k), order=(0, 1))
        b = cute.tile_to_shape(warpgroup.make_smem_layout_atom(kb, self.operands), (self.n, self.k), order=(0, 1))
        mma = hopper.make_trivial_tiled_mma(
            self.operands, self.operands, *self.major, self.result, (1, 1, 1), (64, self.n), self.source
        )
        self.kernel(x, y, mma, a, b).launch(grid=[1, 1, 1], block=[128, 1, 1], stream=stream)

    def tensors(self) -> tuple[Any, ...]:
        return row_major(self.operands, (2048,)), row_major(self.result, (64, self.n))


TMA_OPS = {
    "load": cpasync.CopyBulkTensorTileG2SOp,
    "multicast": cpasync.CopyBulkTensorTileG2SMulticastOp,
    "store": cpasync.CopyBulkTensorTileS2GOp,
    "add": cpasync.CopyReduceBulkTensorTileS2GOp,
}


class Tma:
    def __init__(self, kind: str, dtype: Any, shape: tuple[int, ...], tile: tuple[int, ...], swizzle: int) -> None:
        self.dtype, self.shape, self.tile, self.swizzle = dtype, shape, tile, swizzle
        self.load, self.multicast, self.op = kind in ("load", "multicast"), kind == "multicast", TMA_OPS[kind]()
        self.zeros, self.every = (0,) * len(tile), (None,) * len(tile)
        self.order = tuple(range(len(tile)))[::-1]

    @cute.kernel
    def kernel(self, atom: cute.CopyAtom, g: cute.Tensor, y: cute.Tensor, layout: cute.ComposedLayout):
        thread, _, _ = cute.arch.thread_idx()
        rank = len(self.tile)
        memory = cutlass.memory.SmemAllocator()
        barrier = memory.allocate_array(Int64, 1)
        s = memory.allocate_tensor(self.dtype, layout.outer, byte_alignment=1024, swizzle=layout.inner)
        if thread == 0:
            cute.arch.mbarrier_init(barrier, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        tiles = cute.local_tile(g, self.tile, self.every)
        one = cute.make_layout(1)
        sides = cute.group_modes(s, 0, rank), cute.group_modes(tiles, 0, rank)
        shared, away = cpasync.tma_partition(atom, 0, one, *sides)
        first = away[(None, *self.zeros)]
        if cutlass.const_expr(self.load):
            if thread < 32:
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(barrier, cute.size_in_bytes(self.dtype, layout))
                if cutlass.const_expr(self.multicast):
                    cute.copy(atom, first, shared, tma_bar_ptr=barrier, mcast_mask=Int16(3))
                else:
                    cute.copy(atom, first, shared, tma_bar_ptr=barrier)
            cute.arch.mbarrier_wait(barrier, 0)
            y[thread] = s[(*self.zeros[1:], thread % 8)]
        else:
            s[(*self.zeros[1:], thread % 8)] = y[thread]
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.sync_threads()
            if thread < 32:
                cute.copy(atom, shared, first)
                cute.arch.cp_async_bulk_commit_group()
                cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def __call__(self, a: cute.Tensor, y: cute.Tensor, stream: cuda.CUstream):
        plain = cute.make_ordered_layout(self.tile, order=self.order)
        layout = cute.make_composed_layout(cute.make_swizzle(self.swizzle, 4, 3), 0, plain)
        many = 2 if self.multicast else 1
        atom, g = cpasync.make_tiled_tma_atom(self.op, a, layout, self.tile, num_multicast=many)
        extent = {"grid": [2, 1, 1], "block": [128, 1, 1], "cluster": [2, 1, 1]}
        self.kernel(atom, g, y, layout).launch(stream=stream, **extent)

    def tensors(self) -> tuple[Any, ...]:
        return row_major(self.dtype, self.shape), row_major(self.dtype, (128,))


def warp_kernels() -> Iterator[tuple[str, Any]]:
    for operands, results in ((BFloat16, (Float32,)), (Float16, (Float32, Float16))):
        for k in (8, 16):
            for result in results:
                op = warp.MmaF16BF16Op(operands, result, (16, 8, k))
                yield f"mma {operands} {result} k{k}", WarpMma(op, k, operands, result)
    for k in (4, 8):
        yield f"mma tf32 k{k}", WarpMma(warp.MmaTF32Op((16, 8, k)), k, TFloat32, Float32)
    for operands in (Float8E4M3FN, Float8E5M2):
        for k in (16, 32):
            for result in (Float32, Float16):
                op = warp.MmaFP8Op(operands, result, (16, 8, k))
                yield f"mma {operands} {result} k{k}", WarpMma(op, k, operands, result)
    for count in (1, 2, 4):
        for trans in (False, True):
            for name, store in (("ldmatrix", False), ("stmatrix", True)):
                yield f"{name} x{count}{' trans' * trans}", MatrixCopy(count, trans, store)


def group_kernels() -> Iterator[tuple[str, Any]]:
    kinds = warpgroup.SmemLayoutAtomKind
    k_major = (kinds.K_SW128, kinds.K_SW128)
    for kind in (kinds.K_INTER, kinds.K_SW32, kinds.K_SW64, kinds.K_SW128):
        yield f"wgmma bf16 {kind.name}", GroupMma(BFloat16, Float32, 64, (kind, kind))
    for kind in (kinds.MN_INTER, kinds.MN_SW32, kinds.MN_SW64, kinds.MN_SW128):
        yield f"wgmma bf16 {kind.name}", GroupMma(BFloat16, Float32, 64, (kind, kind))
    yield "wgmma f16 f16", GroupMma(Float16, Float16, 8, k_major)
    yield "wgmma f16 f32", GroupMma(Float16, Float32, 256, k_major)
    yield "wgmma bf16 registers", GroupMma(BFloat16, Float32, 32, k_major, in_registers=True)
    for operands in (Float8E4M3FN, Float8E5M2):
        for result in (Float32, Float16):
            yield f"wgmma {operands} {result}", GroupMma(operands, result, 32, k_major)
    for operands in (Int8, Uint8):
        yield f"wgmma {operands}", GroupMma(operands, Int32, 32, k_major)


def tensor_kernels() -> Iterator[tuple[str, Any]]:
    for kind in TMA_OPS:
        yield f"tma {kind}", Tma(kind, BFloat16, (256, 512), (64, 64), 3)
    for kind in ("load", "store"):
        for rank in range(1, 6):
            shape, tile = (8, 8, 8, 8, 256)[5 - rank :], (2, 2, 2, 2, 32)[5 - rank :]
            yield f"tma {kind} rank {rank}", Tma(kind, Float32, shape, tile, 0)


def main(folder: str, pattern: str = "") -> None:
    options = f"--enable-tvm-ffi --keep-ptx --dump-dir {folder}"
    for kernels in (warp_kernels, group_kernels, tensor_kernels):
        for name, kernel in kernels():
            if re.search(pattern, name):
                stream = make_fake_stream(use_tvm_ffi_env_stream=True)
                text = cute.compile(kernel, *kernel.tensors(), stream, options=options).artifacts.PTX
                for instruction in sorted(set(INSTRUCTION.findall(text))):
                    if not re.search(r"fence|commit_group|wait_group", instruction):
                        print(f"{name}\t{instruction}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
