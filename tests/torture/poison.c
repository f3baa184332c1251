/* Makes a decoder fall ill of chosen files: preloaded, it looks at what a process receives through a socket. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static void fall_ill(const char *data, size_t count, const char *step) {
    char marker[64];
    int length = snprintf(marker, sizeof marker, "poison:%s:", step);
    const char *found = memmem(data, count < 4096 ? count : 4096, marker, length);
    if (!found || found + length >= data + count) return;
    switch (found[length]) {
    case 'c': raise(SIGSEGV); break;
    case 'h': for (;;) ; /* a loop that never ends */
    case 'b': /* takes memory until there is none, and ends as a C++ library does */
        for (char *more; (more = malloc(1 << 20)); memset(more, 1, 1 << 20)) ;
        abort();
    }
}

ssize_t recv(int handle, void *into, size_t count, int flags) {
    static ssize_t (*real)(int, void *, size_t, int);
    if (!real) real = dlsym(RTLD_NEXT, "recv");
    ssize_t taken = real(handle, into, count, flags);
    const char *step = getenv("POISON_STEP");
    if (taken > 0 && step) fall_ill(into, taken, step);
    return taken;
}
