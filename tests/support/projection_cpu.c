/* A projection on the CPU with the calling convention of a built object: out = bf16(x w^T), for bf16 (x, w, out).
   Right on purpose: lets a layer be run, compared and timed with a promoted object in a seat, without a GPU. */
#include <stdint.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

static DLTensor *tensor(const TVMFFIAny *value) {
    if (value->type_index == kTVMFFIDLTensorPtr) return (DLTensor *)value->v_ptr;
    return (DLTensor *)((char *)value->v_obj + sizeof(TVMFFIObject));
}

static uint16_t *data(DLTensor *t) { return (uint16_t *)((char *)t->data + t->byte_offset); }

static float wide(uint16_t bits) {
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

static uint16_t nearest(float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    return (uint16_t)((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

__attribute__((visibility("default"))) int __tvm_ffi_kgen_entry(void *self, const TVMFFIAny *args, int32_t count,
                                                                TVMFFIAny *result) {
    (void)self;
    (void)result;
    if (count != 3) return -1;
    DLTensor *x = tensor(&args[0]), *w = tensor(&args[1]), *out = tensor(&args[2]);
    int64_t rows = x->shape[0], depth = x->shape[1], columns = w->shape[0];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            double sum = 0;
            for (int64_t k = 0; k < depth; k++) sum += wide(data(x)[r * depth + k]) * wide(data(w)[c * depth + k]);
            data(out)[r * columns + c] = nearest((float)sum);
        }
    return 0;
}
