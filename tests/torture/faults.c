/* Makes the Nth write below a folder fail, or kills the process there: preloaded, and armed by `faults_arm`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { NONE, IO_ERROR, FULL, SHORT, KILL };

static char root[PATH_MAX];
static long target;
static enum kind kind;
static int trace = -1;
static _Atomic long seen;

#define REAL(name) ({ static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name); real; })

/* Counts from 1; every point below `below` writes its name into the file `log`. */
void faults_arm(const char *below, long at, int what, const char *log) {
    snprintf(root, sizeof root, "%s/", below);
    target = at;
    kind = what;
    trace = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

static int is_ours(const char *path) { return root[0] && strncmp(path, root, strlen(root)) == 0; }

static int absolute(int folder, const char *path, char *into) {
    char link[64], base[PATH_MAX];
    if (path[0] == '/') return snprintf(into, PATH_MAX, "%s", path) > 0;
    if (folder == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, base, sizeof base - 1);
    if (length < 0) return 0;
    base[length] = 0;
    return snprintf(into, PATH_MAX, "%s/%s", base, path) > 0;
}

/* No removal fails. TensorBoard writes in a thread of its own: a kill is not counted there, or it would strike elsewhere
   each time. */
static int is_counted(const char *operation, const char *path) {
    if (strstr(path, "/waits/") || strstr(path, "/control/")) /* written by the clock: another number each time */
        return 0;
    return kind == KILL ? !strstr(path, "/tensorboard/") : strcmp(operation, "remove") != 0;
}

/* 0: go on. 1: do half of it, if it is a transfer. -1: fail, errno is set. */
static int point(const char *operation, const char *path) {
    char line[PATH_MAX + 64];
    int length = snprintf(line, sizeof line, "%s %s\n", operation, path + strlen(root));
    if (trace >= 0) syscall(SYS_write, trace, line, length);
    if (!is_counted(operation, path)) return 0;
    long number = atomic_fetch_add(&seen, 1) + 1;
    if (kind == KILL) return number == target ? kill(getpid(), SIGKILL) : 0;
    if (kind == NONE || number < target || (number > target && kind != FULL)) return 0;
    int transfer = strcmp(operation, "write") == 0 || strcmp(operation, "copy") == 0;
    if (kind == SHORT) return transfer;
    if (kind == FULL && number == target && transfer) return 1;
    errno = kind == FULL ? ENOSPC : EIO;
    return -1;
}

static int at_path(const char *operation, int folder, const char *path) {
    char full[PATH_MAX];
    return root[0] && path && absolute(folder, path, full) && is_ours(full) ? point(operation, full) : 0;
}

static int at_handle(const char *operation, int handle) {
    char link[64], path[PATH_MAX];
    int before = errno;
    if (!root[0] || handle == trace) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = before;
    if (length < 0) return 0;
    path[length] = 0;
    return is_ours(path) ? point(operation, path) : 0;
}

static size_t some(int told, size_t count) { return told > 0 && count > 1 ? count / 2 : count; }

ssize_t write(int handle, const void *data, size_t count) {
    int told = at_handle("write", handle);
    return told < 0 ? -1 : REAL(write)(handle, data, some(told, count));
}

ssize_t pwrite(int handle, const void *data, size_t count, off_t at) {
    int told = at_handle("write", handle);
    return told < 0 ? -1 : REAL(pwrite)(handle, data, some(told, count), at);
}

ssize_t pwrite64(int handle, const void *data, size_t count, off64_t at) {
    int told = at_handle("write", handle);
    return told < 0 ? -1 : REAL(pwrite64)(handle, data, some(told, count), at);
}

ssize_t writev(int handle, const struct iovec *parts, int count) {
    int told = at_handle("write", handle);
    if (told < 0) return -1;
    return told > 0 ? REAL(write)(handle, parts[0].iov_base, some(told, parts[0].iov_len)) : REAL(writev)(handle, parts, count);
}

ssize_t sendfile(int to, int from, off_t *at, size_t count) {
    int told = at_handle("copy", to);
    return told < 0 ? -1 : REAL(sendfile)(to, from, at, told > 0 ? 100 : count);
}

ssize_t sendfile64(int to, int from, off64_t *at, size_t count) {
    int told = at_handle("copy", to);
    return told < 0 ? -1 : REAL(sendfile64)(to, from, at, told > 0 ? 100 : count);
}

ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t count, unsigned flags) {
    int told = at_handle("copy", to);
    return told < 0 ? -1 : REAL(copy_file_range)(from, from_at, to, to_at, told > 0 ? 100 : count, flags);
}

int fsync(int handle) { return at_handle("fsync", handle) < 0 ? -1 : REAL(fsync)(handle); }
int fdatasync(int handle) { return at_handle("fsync", handle) < 0 ? -1 : REAL(fdatasync)(handle); }
int ftruncate(int handle, off_t size) { return at_handle("resize", handle) < 0 ? -1 : REAL(ftruncate)(handle, size); }
int ftruncate64(int handle, off64_t size) { return at_handle("resize", handle) < 0 ? -1 : REAL(ftruncate64)(handle, size); }

int mkdir(const char *path, mode_t mode) { return at_path("mkdir", AT_FDCWD, path) < 0 ? -1 : REAL(mkdir)(path, mode); }

int mkdirat(int folder, const char *path, mode_t mode) {
    return at_path("mkdir", folder, path) < 0 ? -1 : REAL(mkdirat)(folder, path, mode);
}

int unlink(const char *path) { return at_path("remove", AT_FDCWD, path) < 0 ? -1 : REAL(unlink)(path); }
int rmdir(const char *path) { return at_path("remove", AT_FDCWD, path) < 0 ? -1 : REAL(rmdir)(path); }

int unlinkat(int folder, const char *path, int flags) {
    return at_path("remove", folder, path) < 0 ? -1 : REAL(unlinkat)(folder, path, flags);
}

int symlink(const char *target_, const char *path) {
    return at_path("symlink", AT_FDCWD, path) < 0 ? -1 : REAL(symlink)(target_, path);
}

int link(const char *old, const char *new) { return at_path("link", AT_FDCWD, new) < 0 ? -1 : REAL(link)(old, new); }

int linkat(int from, const char *old, int to, const char *new, int flags) {
    return at_path("link", to, new) < 0 ? -1 : REAL(linkat)(from, old, to, new, flags);
}

int rename(const char *old, const char *new) {
    return at_path("rename", AT_FDCWD, new) < 0 ? -1 : REAL(rename)(old, new);
}

int renameat(int from, const char *old, int to, const char *new) {
    return at_path("rename", to, new) < 0 ? -1 : REAL(renameat)(from, old, to, new);
}

int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    return at_path("rename", to, new) < 0 ? -1 : REAL(renameat2)(from, old, to, new, flags);
}

#define OPEN(name)                                                                       \
    int name(const char *path, int flags, ...) {                                         \
        va_list more;                                                                    \
        va_start(more, flags);                                                           \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;          \
        va_end(more);                                                                    \
        if (flags & O_CREAT && at_path("create", AT_FDCWD, path) < 0) return -1;         \
        return REAL(name)(path, flags, mode);                                            \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                     \
    int name(int folder, const char *path, int flags, ...) {                             \
        va_list more;                                                                    \
        va_start(more, flags);                                                           \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;          \
        va_end(more);                                                                    \
        if (flags & O_CREAT && at_path("create", folder, path) < 0) return -1;           \
        return REAL(name)(folder, path, flags, mode);                                    \
    }
OPENAT(openat)
OPENAT(openat64)
