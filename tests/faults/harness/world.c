/* A world that goes wrong, for processes started with this library in LD_PRELOAD. Nothing happens before `kgen_world`.

   clock   seconds that the wall clock jumps by as soon as the file `place` is there (the monotonic one stays)
   slow    milliseconds that every open, write, fsync and rename below `place` takes
   full    no write below `place` finds room: ENOSPC
   Paths are followed to open files by their descriptor's name in /proc. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long clock_shift;
static int slow_ms, disk_full;
static char place[4096];

void kgen_world(long shift, int slow, int full, const char *where) {
    clock_shift = shift, slow_ms = slow, disk_full = full;
    strncpy(place, where, sizeof place - 1);
}

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

static int inside(const char *path) { return place[0] && path && strstr(path, place) != NULL; }

static int open_inside(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    return n > 0 && (path[n] = 0, inside(path));
}

static void wait_a_little(int here) {
    struct timespec t = {slow_ms / 1000, slow_ms % 1000 * 1000000L};
    if (slow_ms && here) nanosleep(&t, NULL);
}

int clock_gettime(clockid_t id, struct timespec *t) {
    int r = (int)syscall(SYS_clock_gettime, id, t);
    if (!r && id == CLOCK_REALTIME && clock_shift && !access(place, F_OK)) t->tv_sec += clock_shift;
    return r;
}

time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}

int gettimeofday(struct timeval *v, void *zone) {
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    v->tv_sec = t.tv_sec, v->tv_usec = t.tv_nsec / 1000;
    return 0;
}

#define OPEN(NAME)                                                  \
    int NAME(const char *path, int flags, ...) {                    \
        va_list rest;                                               \
        va_start(rest, flags);                                      \
        mode_t mode = va_arg(rest, mode_t);                         \
        va_end(rest);                                               \
        wait_a_little(inside(path));                                \
        return ((int (*)(const char *, int, mode_t))real(#NAME))(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

ssize_t write(int fd, const void *data, size_t size) {
    if (slow_ms || disk_full) {
        int here = fd > 2 && open_inside(fd);
        if (here && disk_full) {
            errno = ENOSPC;
            return -1;
        }
        wait_a_little(here);
    }
    return syscall(SYS_write, fd, data, size);
}

int fsync(int fd) {
    wait_a_little(slow_ms && open_inside(fd));
    return (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to) {
    wait_a_little(inside(to));
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
