/* An object that launches two kernels a call through the CuTe DSL runtime's entry points, as built objects do; the
   second only when the first argument says so. For tests of the launch counter: no GPU, no tensors. */
#include <stdint.h>
#include <tvm/ffi/c_api.h>

int _cudaLibraryGetKernel(void **kernel, void *library, const char *name);
int _cudaLaunchKernelEx(const void *config, const void *kernel, void **args);

static void *first, *second;

__attribute__((visibility("default"))) int __tvm_ffi_kgen_entry(void *self, const TVMFFIAny *args, int32_t count,
                                                                TVMFFIAny *result) {
    (void)self;
    (void)result;
    if (count != 1) return -1;
    if (!first) {
        _cudaLibraryGetKernel(&first, 0, "kernel_one");
        _cudaLibraryGetKernel(&second, 0, "kernel_two");
    }
    _cudaLaunchKernelEx(0, first, 0);
    if (args[0].v_int64 == 1) _cudaLaunchKernelEx(0, second, 0);
    if (args[0].v_int64 == 2) _cudaLaunchKernelEx(0, &first, 0); /* a handle that nobody asked for by name */
    if (args[0].v_int64 == 3) _cudaLaunchKernelEx((void *)1, second, 0); /* the runtime refuses this one */
    return 0;
}
