/* Loaded into the tests by `make test`: a file is synced at once. Hundreds of small durable writes would else wait for
 * the disk, which only a power failure could tell. What shows the order of syncs loads a library of its own instead. */
#include <fcntl.h>

static int open_file(int fd) { return fcntl(fd, F_GETFD) < 0 ? -1 : 0; }

int fsync(int fd) { return open_file(fd); }

int fdatasync(int fd) { return open_file(fd); }
