/* A layer between a process and its file system, loaded with LD_PRELOAD. Below one folder it counts every call that
 * changes something, logs it, and at a chosen one kills the process or lets the call fail. It also moves the clock.
 *
 * Not seen: mmap, sendfile and what libc does inside itself (fopen, mkstemp). Nothing that writes below a watched
 * folder uses them; a test compares the log with what lies there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { WATCH, KILL, TORN, ONCE, ON, SHORT, HALF };

static char root[4096];
static size_t root_length;
static int log_fd = -1, mode, failure, armed, lock_failure, folder_sync_failure;
static long at, count, delay_us, clock_shift;

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

void layer_arm(const char *folder, const char *log, int how, long where, int number, long microseconds) {
    root_length = strlen(strcpy(root, folder));
    log_fd = log[0] ? (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    mode = how, at = where, failure = number, delay_us = microseconds, count = 0, armed = 1;
}

void layer_disarm(void) { armed = 0; }
void layer_quirks(int lock, int folder_sync) { lock_failure = lock, folder_sync_failure = folder_sync; }
void layer_clock(long seconds) { clock_shift = seconds; }
long layer_count(void) { return count; }

static int absolute(int folder, const char *path, char *out) {
    if (path[0] == '/') return snprintf(out, 4096, "%s", path) < 4096;
    char base[4096];
    if (folder == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return 0;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = readlink(link, base, sizeof base - 1);
        if (length < 0) return 0;
        base[length] = 0;
    }
    return path[0] ? snprintf(out, 4096, "%s/%s", base, path) < 4096 : snprintf(out, 4096, "%s", base) < 4096;
}

static int watched(const char *path) {
    return armed && !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

static int of_descriptor(int fd, char *out) { return armed && absolute(fd, "", out) && watched(out); }

void layer_write_log(const char *kind, const char *a, const char *b, long offset, const void *data, size_t length) {
    if (log_fd < 0) return;
    size_t room = strlen(kind) + strlen(a) + strlen(b) + 96 + 2 * length;
    char *line = malloc(room);
    int used = snprintf(line, room, "%ld\t%s\t%s\t%s\t%ld\t", count, kind, a, b, offset);
    for (size_t i = 0; i < length; i++) used += sprintf(line + used, "%02x", ((const unsigned char *)data)[i]);
    line[used++] = '\n';
    syscall(SYS_write, log_fd, line, used);
    free(line);
}

void layer_note(const char *text) { layer_write_log("note", text, "", 0, "", 0); }

/* Counts a call, and decides: 0 go on, 1 fail with errno, 2 write half, 3 write half and die. */
static int point(const char *kind, const char *path) {
    long mine = __atomic_fetch_add(&count, 1, __ATOMIC_SEQ_CST);
    if (delay_us) usleep(delay_us);
    if (mode == WATCH || mine < at) return 0;
    int writing = !strcmp(kind, "write"), reached = mine == at;
    if (reached && mode != ON && mode != ONCE) layer_write_log("hit", path, kind, mine, "", 0);
    if (mode == KILL || mode == TORN) {
        if (!reached) return 0;
        if (mode == TORN && writing) return 3;
        syscall(SYS_kill, getpid(), SIGKILL);
    }
    if ((mode == SHORT || mode == HALF) && reached && writing) return 2;
    if (mode == HALF) return 0;
    if (mode == ONCE && !reached) return 0;
    int removes = !strcmp(kind, "unlink") || !strcmp(kind, "rmdir");
    int syncs = !strcmp(kind, "sync") || !strcmp(kind, "close");
    int full = failure == ENOSPC || failure == EDQUOT;
    if (mode != ONCE && ((full && (removes || syncs)) || (failure == EROFS && syncs))) return 0;
    errno = failure;
    return 1;
}

static int opened(int folder, const char *path, int flags, mode_t bits, const char *name) {
    char full[4096];
    int writes = (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC);
    int (*next)(int, const char *, int, ...) = real(name);
    if (!armed || !writes || !absolute(folder, path, full) || !watched(full)) return next(folder, path, flags, bits);
    struct stat before;
    int new = syscall(SYS_newfstatat, AT_FDCWD, full, &before, 0) != 0;
    const char *kind = new ? "create" : flags & O_TRUNC ? "truncate" : "open";
    if (point(kind, full)) return -1;
    int fd = next(folder, path, flags, bits);
    if (fd >= 0) layer_write_log(kind, full, "", 0, "", 0);
    return fd;
}

#define BITS                                                                                                           \
    mode_t bits = 0;                                                                                                   \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                               \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        bits = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }
int open(const char *path, int flags, ...) { BITS return opened(AT_FDCWD, path, flags, bits, "openat"); }
int open64(const char *path, int flags, ...) { BITS return opened(AT_FDCWD, path, flags, bits, "openat64"); }
int openat(int folder, const char *path, int flags, ...) { BITS return opened(folder, path, flags, bits, "openat"); }
int openat64(int folder, const char *path, int flags, ...) { BITS return opened(folder, path, flags, bits, "openat64"); }

static ssize_t written(int fd, const void *data, size_t length, off_t offset, int placed) {
    char full[4096];
    int decision = 0, seen = of_descriptor(fd, full);
    if (seen) {
        if (!placed) offset = lseek(fd, 0, SEEK_CUR);
        if ((decision = point("write", full)) == 1) return -1;
        if (decision >= 2 && length > 1) length /= 2;
    }
    ssize_t done = placed ? syscall(SYS_pwrite64, fd, data, length, offset) : syscall(SYS_write, fd, data, length);
    if (decision == 3) syscall(SYS_kill, getpid(), SIGKILL);
    if (seen && done > 0) layer_write_log("write", full, "", offset, data, done);
    return done;
}

ssize_t write(int fd, const void *data, size_t length) { return written(fd, data, length, 0, 0); }
ssize_t pwrite(int fd, const void *data, size_t length, off_t where) { return written(fd, data, length, where, 1); }
ssize_t pwrite64(int fd, const void *data, size_t length, off64_t where) { return written(fd, data, length, where, 1); }

static int synced(int fd, const char *name) {
    char full[4096];
    struct stat status;
    int (*next)(int) = real(name), seen = of_descriptor(fd, full);
    if (seen && folder_sync_failure && !fstat(fd, &status) && S_ISDIR(status.st_mode)) {
        errno = folder_sync_failure;
        return -1;
    }
    if (seen && point("sync", full)) return -1;
    int done = next(fd);
    if (seen && !done) layer_write_log("sync", full, "", 0, "", 0);
    return done;
}

int fsync(int fd) { return synced(fd, "fsync"); }
int fdatasync(int fd) { return synced(fd, "fdatasync"); }

static int resized(int fd, off_t length, const char *name) {
    char full[4096];
    int (*next)(int, off_t) = real(name), seen = of_descriptor(fd, full);
    if (seen && point("truncate", full)) return -1;
    int done = next(fd, length);
    if (seen && !done) layer_write_log("resize", full, "", length, "", 0);
    return done;
}

int ftruncate(int fd, off_t length) { return resized(fd, length, "ftruncate"); }
int ftruncate64(int fd, off64_t length) { return resized(fd, length, "ftruncate64"); }

int close(int fd) {
    char full[4096];
    int flags = armed ? fcntl(fd, F_GETFL) : 0, failed = 0;
    if (flags > 0 && (flags & O_ACCMODE) != O_RDONLY && of_descriptor(fd, full)) failed = point("close", full) == 1;
    int number = errno, done = (int)syscall(SYS_close, fd);
    if (failed) errno = number;
    return failed ? -1 : done;
}

/* A change of one or two names. */
static int named(const char *kind, int folder, const char *path, int to, const char *other, char *a, char *b) {
    b[0] = 0;
    if (!armed || !absolute(folder, path, a) || (other && !absolute(to, other, b))) return -1;
    if (!watched(a) && !(other && watched(b))) return -1;
    return point(kind, a) == 1;
}

#define NAMED(kind, folder, path, to, other, call)                                                                     \
    char a[4096], b[4096];                                                                                             \
    int failed = named(kind, folder, path, to, other, a, b);                                                           \
    if (failed == 1) return -1;                                                                                        \
    int done = call;                                                                                                   \
    if (!failed && !done) layer_write_log(kind, a, b, 0, "", 0);                                                       \
    return done;

int rename(const char *x, const char *y) { NAMED("rename", AT_FDCWD, x, AT_FDCWD, y, REAL(rename)(x, y)) }
int renameat(int f, const char *x, int g, const char *y) { NAMED("rename", f, x, g, y, REAL(renameat)(f, x, g, y)) }
int link(const char *x, const char *y) { NAMED("link", AT_FDCWD, x, AT_FDCWD, y, REAL(link)(x, y)) }
int symlink(const char *x, const char *y) { NAMED("symlink", AT_FDCWD, y, AT_FDCWD, NULL, REAL(symlink)(x, y)) }
int unlink(const char *x) { NAMED("unlink", AT_FDCWD, x, AT_FDCWD, NULL, REAL(unlink)(x)) }
int unlinkat(int f, const char *x, int flags) {
    NAMED(flags & AT_REMOVEDIR ? "rmdir" : "unlink", f, x, AT_FDCWD, NULL, REAL(unlinkat)(f, x, flags))
}
int rmdir(const char *x) { NAMED("rmdir", AT_FDCWD, x, AT_FDCWD, NULL, REAL(rmdir)(x)) }
int mkdir(const char *x, mode_t bits) { NAMED("mkdir", AT_FDCWD, x, AT_FDCWD, NULL, REAL(mkdir)(x, bits)) }
int mkdirat(int f, const char *x, mode_t bits) { NAMED("mkdir", f, x, AT_FDCWD, NULL, REAL(mkdirat)(f, x, bits)) }

int flock(int fd, int operation) {
    char full[4096];
    if (lock_failure && of_descriptor(fd, full)) {
        errno = lock_failure;
        return -1;
    }
    return REAL(flock)(fd, operation);
}

int clock_gettime(clockid_t which, struct timespec *out) {
    int done = (int)syscall(SYS_clock_gettime, which, out);
    if (!done && which == CLOCK_REALTIME) out->tv_sec += clock_shift;
    return done;
}
