/* A CPU "kernel" with the calling convention of a built object: y = -m for bf16 arguments (m, w_gate_up, w_down, y).
   Lets the loader be tested to the end without a GPU: linking, loading and calling are the real ones. */
#include <stdint.h>
#include <tvm/ffi/c_api.h>

static DLTensor *tensor(const TVMFFIAny *value) {
    if (value->type_index == kTVMFFIDLTensorPtr) return (DLTensor *)value->v_ptr;
    return (DLTensor *)((char *)value->v_obj + sizeof(TVMFFIObject));
}

__attribute__((visibility("default"))) int __tvm_ffi_kgen_entry(void *self, const TVMFFIAny *args, int32_t count,
                                                                TVMFFIAny *result) {
    (void)self;
    (void)result;
    if (count != 4) return -1;
    DLTensor *m = tensor(&args[0]), *y = tensor(&args[3]);
    const uint16_t *in = (const uint16_t *)((char *)m->data + m->byte_offset);
    uint16_t *out = (uint16_t *)((char *)y->data + y->byte_offset);
    for (int64_t i = 0; i < m->shape[0] * m->shape[1]; i++) out[i] = in[i] ^ 0x8000;
    return 0;
}
