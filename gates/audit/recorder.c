/* The launch recorder: calls an exported tvm-ffi object with CUDA tensors that do not exist, and writes down every
   launch that it would make. No GPU, no driver, no CUDA library.

       recorder KERNEL.so KERNEL.fatbin < description

   It stands in for libcute_dsl_runtime.so and for the parts of tvm-ffi that a launcher uses (KERNEL.so is linked
   against nothing; its undefined symbols resolve to the functions here). The description has one item a line:
       kernel NAME COUNT SIZE...          parameter sizes of a kernel of the cubin, in bytes
       tensor ADDRESS CODE BITS PITCH NDIM DIM...   PITCH: elements between entries of the first dimension, 0: compact
       int VALUE | float VALUE
   arguments in call order. The function is called twice: a launcher must do the same thing every time. Output: one
   JSON object a line; {"done": status} is the last. From the first call on, a seccomp filter kills the process on any
   system call but writing to stdout, memory and exit, so a launcher that does anything else does not get away with it.
   Not covered: a launcher crafted to print forged lines; its launches are counted again on the GPU. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_KERNELS 64
#define MAX_PARAMS 64
#define MAX_NAME 4096 /* a kernel's name spells out the types of all its tensors */
#define MAX_ARGS 128
#define MAX_DIMS 8
#define MAX_LAUNCHES 256
#define STREAM ((void *)0x5354524541ULL) /* the stream that the caller is on: no other may be used */
#define SMEM_LIMIT 232448

struct kernel { char name[MAX_NAME]; int count; int sizes[MAX_PARAMS]; };
static struct kernel kernels[MAX_KERNELS];
static int kernel_count, launches;
static unsigned char *image;
static long image_size;
static char error_kind[64], error_text[512];

/* ---- output: a JSON line is built in one buffer and written at once ---- */
static char line[1 << 16];
static size_t used;

static void put(const char *text) {
    size_t n = strlen(text);
    if (used + n < sizeof line) memcpy(line + used, text, n), used += n;
}
static void put_int(long long v) { char b[32]; snprintf(b, sizeof b, "%lld", v); put(b); }
static void put_text(const char *text) {
    char b[8];
    put("\"");
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 32 || c == '"' || c == '\\' || c > 126) snprintf(b, sizeof b, "\\u%04x", c);
        else b[0] = (char)c, b[1] = 0;
        put(b);
    }
    put("\"");
}
static void put_hex(const void *data, size_t n) {
    const unsigned char *p = data;
    char b[4];
    put("\"");
    for (size_t i = 0; i < n; i++) snprintf(b, sizeof b, "%02x", p[i]), put(b);
    put("\"");
}
static void flush_line(void) {
    put("\n");
    for (size_t done = 0; done < used;) {
        ssize_t n = write(1, line + done, used - done);
        if (n <= 0) _exit(3);
        done += (size_t)n;
    }
    used = 0;
}
static void refuse(const char *why) {
    put("{\"refused\": "), put_text(why), put("}");
    flush_line();
    _exit(2);
}

/* ---- the CuTe DSL runtime, as the lowered launchers call it ---- */
EXPORT int _cudaLibraryLoadData(void **library, const void *code) {
    if (memcmp(code, image, (size_t)image_size)) refuse("the launcher loads other code than the object's one fat binary");
    *library = (void *)0x1000;
    return 0;
}
EXPORT int _cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
    (void)library;
    for (int i = 0; i < kernel_count; i++)
        if (!strcmp(kernels[i].name, name)) return *kernel = &kernels[i], 0;
    refuse("the launcher asks for a kernel that the cubin does not hold");
    return 1;
}
EXPORT int _cudaGetDevice(int *device) { return *device = 0, 0; }
EXPORT int _cudaSetDevice(int device) { return device ? (refuse("the launcher changes the device"), 1) : 0; }
EXPORT int _cudaDeviceGetAttribute(int *value, int attribute, int device) {
    (void)attribute, (void)device;
    return *value = SMEM_LIMIT, 0;
}
EXPORT int _cudaFuncSetAttribute(const void *function, int attribute, int value) {
    (void)function, (void)attribute, (void)value;
    return 0;
}
EXPORT int _cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device) {
    (void)kernel, (void)attribute, (void)value, (void)device;
    return 0;
}
EXPORT int _cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
    (void)attribute, (void)kernel, (void)device;
    return *value = 0, 0;
}
/* The descriptor is opaque to a launcher: the address it was made for goes first, as in the real one. */
EXPORT int _cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address) {
    (void)type, (void)rank;
    memset(map, 0, 128);
    memcpy(map, &address, sizeof address);
    return 0;
}
EXPORT int cuda_dialect_init_library_once(void **state, int (*init)(void **), int (*load)(void **, int), void *error) {
    static void *seen[16];
    static int count;
    (void)error;
    for (int i = 0; i < count; i++)
        if (seen[i] == (void *)state) return 0;
    if (count == 16) refuse("the launcher loads too many libraries");
    seen[count++] = (void *)state;
    int status = init(state);
    return status ? status : load(state, 0);
}
EXPORT int cuda_dialect_unload_library_once(void **state, void *function, void *argument) {
    (void)state, (void)function, (void)argument;
    return 0;
}
EXPORT void CuteDSLRT_TVMFFISetRaisedCudaError(int error) { snprintf(error_kind, sizeof error_kind, "cuda %d", error); }

/* The compiler's own complaint is let through: the limits say it better. */
EXPORT int printf(const char *format, ...) {
    if (!strstr(format, "launch shared memory exceeds")) refuse("the launcher prints");
    return 0;
}

struct config { unsigned grid[3], block[3]; size_t smem; void *stream; const unsigned char *attributes; unsigned count; };

EXPORT int _cudaLaunchKernelEx(const struct config *c, const void *function, void **args) {
    const struct kernel *k = function;
    if (k < kernels || k >= kernels + kernel_count) refuse("a launch of something that is not a kernel of the object");
    if (c->stream != STREAM) refuse("a launch on a stream other than the caller's");
    if (c->count > 32) refuse("a launch with more than 32 attributes");
    if (++launches > MAX_LAUNCHES) refuse("more than 256 launches");
    put("{\"launch\": {\"kernel\": "), put_text(k->name);
    put(", \"grid\": [");
    for (int i = 0; i < 3; i++) put(i ? ", " : ""), put_int(c->grid[i]);
    put("], \"block\": [");
    for (int i = 0; i < 3; i++) put(i ? ", " : ""), put_int(c->block[i]);
    put("], \"smem\": "), put_int((long long)c->smem), put(", \"attributes\": [");
    for (unsigned i = 0; i < c->count; i++) { /* cudaLaunchAttribute: id, padding, 64 bytes of value */
        int id;
        memcpy(&id, c->attributes + 72 * i, sizeof id);
        put(i ? ", [" : "["), put_int(id), put(", "), put_hex(c->attributes + 72 * i + 8, 16), put("]");
    }
    put("], \"args\": [");
    for (int i = 0; i < k->count; i++) put(i ? ", " : ""), put_hex(args[i], (size_t)k->sizes[i]);
    put("]}}");
    flush_line();
    return 0;
}

/* ---- tvm-ffi, as the lowered launchers call it ---- */
EXPORT void *TVMFFIEnvGetStream(int type, int id) { return (void)type, (void)id, STREAM; }
EXPORT void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *text) {
    snprintf(error_kind, sizeof error_kind, "%s", kind);
    snprintf(error_text, sizeof error_text, "%s", text);
}
EXPORT void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int count) {
    size_t n = 0;
    snprintf(error_kind, sizeof error_kind, "%s", kind);
    for (int i = 0; i < count && n < sizeof error_text; i++)
        if (parts[i]) n += (size_t)snprintf(error_text + n, sizeof error_text - n, "%s", parts[i]);
}

struct any { int32_t type; uint32_t padding; union { int64_t i; double f; void *p; } value; };
enum { NONE = 0, INT = 1, FLOAT = 3, DLTENSOR = 7 };
struct dltensor {
    void *data; int32_t device_type, device_id, ndim; uint8_t code, bits; uint16_t lanes;
    int64_t *shape, *strides; uint64_t byte_offset;
};
static struct any args[MAX_ARGS];
static struct dltensor tensors[MAX_ARGS];
static int64_t dims[MAX_ARGS][2][MAX_DIMS];
static int arg_count;

static void fail(const char *why) { fprintf(stderr, "recorder: %s\n", why); exit(4); }
static long long number(void) { long long v; if (scanf("%lld", &v) != 1) fail("number expected"); return v; }

static void read_kernel(void) {
    if (kernel_count == MAX_KERNELS) fail("too many kernels");
    struct kernel *k = &kernels[kernel_count++];
    if (scanf("%4095s", k->name) != 1) fail("kernel name expected");
    k->count = (int)number();
    if (k->count < 0 || k->count > MAX_PARAMS) fail("too many parameters");
    for (int i = 0; i < k->count; i++) k->sizes[i] = (int)number();
}
static void read_tensor(void) {
    struct dltensor *t = &tensors[arg_count];
    int64_t *shape = dims[arg_count][0], *strides = dims[arg_count][1], step = 1;
    t->data = (void *)(uintptr_t)number();
    t->device_type = 2; /* CUDA */
    t->code = (uint8_t)number(), t->bits = (uint8_t)number(), t->lanes = 1;
    int64_t pitch = number();
    t->ndim = (int32_t)number();
    if (t->ndim < 0 || t->ndim > MAX_DIMS) fail("too many dimensions");
    for (int i = 0; i < t->ndim; i++) shape[i] = number();
    for (int i = t->ndim - 1; i >= 0; i--) strides[i] = step, step *= shape[i];
    if (pitch && t->ndim) strides[0] = pitch;
    t->shape = shape, t->strides = strides;
    args[arg_count].type = DLTENSOR, args[arg_count++].value.p = t;
}
static void read_description(void) {
    char word[16];
    while (scanf("%15s", word) == 1) {
        if (arg_count == MAX_ARGS) fail("too many arguments");
        if (!strcmp(word, "kernel")) read_kernel();
        else if (!strcmp(word, "tensor")) read_tensor();
        else if (!strcmp(word, "int")) args[arg_count].type = INT, args[arg_count++].value.i = number();
        else if (!strcmp(word, "float")) {
            if (scanf("%lf", &args[arg_count].value.f) != 1) fail("number expected");
            args[arg_count++].type = FLOAT;
        } else fail("unknown word in the description");
    }
}
static void read_image(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) || (image_size = ftell(file)) <= 0) fail("cannot read the fat binary");
    rewind(file);
    image = malloc((size_t)image_size);
    if (!image || fread(image, 1, (size_t)image_size, file) != (size_t)image_size) fail("cannot read the fat binary");
    fclose(file);
}

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif
#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void lock_down(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(exit_group), ALLOW(exit), ALLOW(brk), ALLOW(munmap), ALLOW(futex), ALLOW(rt_sigreturn), ALLOW(madvise),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        put("{\"note\": \"no seccomp here\"}");
        flush_line();
    }
}

int main(int argc, char **argv) {
    if (argc != 3) fail("usage: recorder KERNEL.so KERNEL.fatbin < description");
    read_image(argv[2]);
    read_description();
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) fail(dlerror());
    int (*entry)(void *, const struct any *, int32_t, struct any *);
    *(void **)&entry = dlsym(library, "__tvm_ffi_kgen_entry");
    if (!entry) fail("no kgen_entry in the object");
    lock_down();
    for (int call = 0; call < 2; call++) {
        struct any result = {NONE, 0, {0}};
        put("{\"call\": "), put_int(call), put("}");
        flush_line();
        int status = entry(NULL, args, arg_count, &result);
        if (status) {
            put("{\"error\": "), put_text(error_kind), put(", \"message\": "), put_text(error_text), put("}");
            flush_line();
            _exit(1);
        }
    }
    put("{\"done\": 0}");
    flush_line();
    _exit(0);
}
