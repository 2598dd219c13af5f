/* shared_cpu.c without a workspace argument: (m, w_gate_up, w_down, y), as a serving process calls it. One thread. */
#define __tvm_ffi_kgen_entry shared_with_workspace
#include "shared_cpu.c"
#undef __tvm_ffi_kgen_entry

enum { TOKENS = 64, WIDTH = 128 }; /* the largest call of the small model */
static uint16_t workspace[TOKENS * WIDTH];

__attribute__((visibility("default"))) int __tvm_ffi_kgen_entry(void *self, const TVMFFIAny *args, int32_t count,
                                                                TVMFFIAny *result) {
    if (count != 4) return -1;
    DLTensor *down = tensor(&args[2]);
    int64_t shape[2] = {tensor(&args[0])->shape[0], down->shape[1]};
    if (shape[0] > TOKENS || shape[1] > WIDTH) return -1;
    DLTensor h = *down;
    h.data = workspace, h.byte_offset = 0, h.shape = shape, h.strides = 0;
    TVMFFIAny all[5] = {args[0], args[1], args[2], args[3]};
    all[4].type_index = kTVMFFIDLTensorPtr;
    all[4].v_ptr = &h;
    return shared_with_workspace(self, all, 5, result);
}
