/* moe_shared on CPU with the calling convention of a built object: (m, w_gate_up, w_down, y, workspace h bf16[T, W]).
   Right on purpose: lets numeric and perf run a real object, linked and loaded, to a pass without a GPU. */
#include <stdint.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

static DLTensor *tensor(const TVMFFIAny *value) {
    if (value->type_index == kTVMFFIDLTensorPtr) return (DLTensor *)value->v_ptr;
    return (DLTensor *)((char *)value->v_obj + sizeof(TVMFFIObject));
}

static uint16_t *data(DLTensor *t) { return (uint16_t *)((char *)t->data + t->byte_offset); }

static double wide(uint16_t bits) {
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

static uint16_t narrow(double value) {
    float single = (float)value;
    uint32_t word;
    memcpy(&word, &single, 4);
    return (uint16_t)((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

static double exponential(double x) { /* no libm: the linker line of a kernel has none */
    if (x < -700) return 0;
    if (x > 700) x = 700;
    int halvings = 0;
    double term = 1, sum = 1;
    while (x > 0.01 || x < -0.01) x *= 0.5, halvings++;
    for (int i = 1; i < 10; i++) sum += term *= x / i;
    while (halvings--) sum *= sum;
    return sum;
}

static double tangent(double x) { /* tanh */
    if (x > -1e-3 && x < 1e-3) return x - x * x * x / 3;
    double e = exponential(2 * x);
    return (e - 1) / (e + 1);
}

__attribute__((visibility("default"))) int __tvm_ffi_kgen_entry(void *self, const TVMFFIAny *args, int32_t count,
                                                                TVMFFIAny *result) {
    (void)self;
    (void)result;
    if (count != 5) return -1;
    DLTensor *tm = tensor(&args[0]), *th = tensor(&args[4]);
    int64_t tokens = tm->shape[0], hidden = tm->shape[1], width = th->shape[1];
    uint16_t *m = data(tm), *up = data(tensor(&args[1])), *down = data(tensor(&args[2])), *y = data(tensor(&args[3]));
    uint16_t *h = data(th);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t n = 0; n < width; n++) {
            double g = 0, u = 0;
            for (int64_t k = 0; k < hidden; k++) {
                double x = wide(m[t * hidden + k]);
                g += x * wide(up[n * hidden + k]);
                u += x * wide(up[(n + width) * hidden + k]);
            }
            g = wide(narrow(g)), u = wide(narrow(u));
            h[t * width + n] = narrow(4 * tangent(g / 4) / (1 + exponential(-g)) * 25 * tangent(u / 25));
        }
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t n = 0; n < hidden; n++) {
            double sum = 0;
            for (int64_t k = 0; k < width; k++) sum += wide(h[t * width + k]) * wide(down[n * width + k]);
            y[t * hidden + n] = narrow(sum);
        }
    return 0;
}
