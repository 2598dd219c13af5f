/* Counts kernel launches where a built object meets the CuTe DSL runtime library.

   Linked into the same shared object with -Wl,--wrap=_cudaLaunchKernelEx,--wrap=_cudaLibraryGetKernel: the object's
   calls arrive at the __wrap_ functions here, which count and forward. Everything but the kgen_launch_ functions is
   hidden, so two objects in one process count apart. Launches recorded into a CUDA graph count once, at capture.
   Not covered: what other libraries launch. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define HIDDEN __attribute__((visibility("hidden")))
#define EXPORT __attribute__((visibility("default")))
#define MAX_KERNELS 64
#define MAX_NAME 1024

int __real__cudaLaunchKernelEx(const void *config, const void *kernel, void **args);
int __real__cudaLibraryGetKernel(void **kernel, void *library, const char *name);

struct entry {
    const void *handle;
    char name[MAX_NAME];
    atomic_llong launches;
};

static struct entry entries[MAX_KERNELS];
static atomic_int used;            /* entries below it are complete */
static atomic_llong unknown;       /* launches of a handle that no name was asked for */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

HIDDEN int __wrap__cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
    int status = __real__cudaLibraryGetKernel(kernel, library, name);
    if (status != 0) return status;
    pthread_mutex_lock(&lock);
    int n = atomic_load(&used), i = 0;
    while (i < n && entries[i].handle != *kernel) i++;
    if (i == n && n < MAX_KERNELS) {
        entries[n].handle = *kernel;
        strncpy(entries[n].name, name, MAX_NAME - 1);
        atomic_store(&used, n + 1);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

HIDDEN int __wrap__cudaLaunchKernelEx(const void *config, const void *kernel, void **args) {
    int n = atomic_load(&used);
    atomic_llong *counter = &unknown;
    for (int i = 0; i < n; i++)
        if (entries[i].handle == kernel) counter = &entries[i].launches;
    int status = __real__cudaLaunchKernelEx(config, kernel, args);
    if (status == 0) atomic_fetch_add(counter, 1); /* a refused launch is no launch */
    return status;
}

EXPORT int kgen_launch_kernels(void) { return atomic_load(&used); }
EXPORT const char *kgen_launch_name(int i) { return i >= 0 && i < atomic_load(&used) ? entries[i].name : ""; }
EXPORT long long kgen_launch_count(int i) {
    return i >= 0 && i < atomic_load(&used) ? atomic_load(&entries[i].launches) : 0;
}
EXPORT long long kgen_launch_unknown(void) { return atomic_load(&unknown); }
EXPORT void kgen_launch_reset(void) {
    for (int i = 0; i < MAX_KERNELS; i++) atomic_store(&entries[i].launches, 0);
    atomic_store(&unknown, 0);
}
