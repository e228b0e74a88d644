// Faults of the system, for a worker that is started with this library in LD_PRELOAD.
//
// FAULTS holds rules with spaces between them; they act while the file named by FAULTS_WHILE exists:
//
//   write=ERRNO@FOLDER   writes to files in FOLDER, and their creation, fail with ERRNO
//   read=ERRNO@FOLDER    reads of files in FOLDER fail with ERRNO
//   slow=US@FOLDER       each of these calls takes US microseconds
//   alloc=BYTES          one allocation of at least BYTES fails each time that the file appears
//   thread=ERRNO         no thread can be started
//   resolve=SECONDS      a name is looked up for SECONDS, and then unknown
//   clock=SECONDS        the time of day is off by SECONDS
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>


static void *found(void **cache, const char *name) {
    if (!*cache) *cache = dlsym(RTLD_NEXT, name);
    return *cache;
}
#define REAL(name) static void *cached_##name; typeof(&name) next = (typeof(&name)) found(&cached_##name, #name)

static int is_on(void) {
    static const char *file;
    if (!file) file = getenv("FAULTS_WHILE");
    return file && access(file, F_OK) == 0;
}

// The number of a rule, and its folder; 0 if there is no such rule.
static long rule(const char *name, char *folder) {
    const char *rules = getenv("FAULTS");
    size_t length = strlen(name);
    for (const char *at = rules; at && *at; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : "") {
        if (strncmp(at, name, length) || at[length] != '=') continue;
        char *end;
        long number = strtol(at + length + 1, &end, 10);
        if (folder && *end == '@') sscanf(end + 1, "%4095[^ ]", folder);
        return number;
    }
    return 0;
}

static int is_in(const char *path, const char *folder) { return *folder && !strncmp(path, folder, strlen(folder)); }

static int fault_of(const char *path, int writes) {
    char folder[4096] = "";
    if (!path || path[0] != '/' || !is_on()) return 0;
    long us = rule("slow", folder);
    if (us && is_in(path, folder)) usleep(us);
    folder[0] = 0;
    long error = rule(writes ? "write" : "read", folder);
    return error && is_in(path, folder) ? (int) error : 0;
}

static int fault_of_fd(int fd, int writes) {
    char link[64], path[4096];
    if (!getenv("FAULTS") || !strchr(getenv("FAULTS"), '@')) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return fault_of(path, writes);
}

#define FAIL_IF(error) do { int e_ = (error); if (e_) { errno = e_; return -1; } } while (0)

ssize_t write(int fd, const void *data, size_t n) {
    REAL(write);
    FAIL_IF(fault_of_fd(fd, 1));
    return next(fd, data, n);
}

ssize_t writev(int fd, const struct iovec *parts, int n) {
    REAL(writev);
    FAIL_IF(fault_of_fd(fd, 1));
    return next(fd, parts, n);
}

ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) {
    REAL(pwrite64);
    FAIL_IF(fault_of_fd(fd, 1));
    return next(fd, data, n, at);
}

ssize_t read(int fd, void *data, size_t n) {
    REAL(read);
    FAIL_IF(fault_of_fd(fd, 0));
    return next(fd, data, n);
}

ssize_t pread64(int fd, void *data, size_t n, off64_t at) {
    REAL(pread64);
    FAIL_IF(fault_of_fd(fd, 0));
    return next(fd, data, n, at);
}

int open64(const char *path, int flags, ...) {
    REAL(open64);
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    if (flags & (O_WRONLY | O_RDWR | O_CREAT)) FAIL_IF(fault_of(path, 1));
    return next(path, flags, mode);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    FAIL_IF(fault_of(to, 1));
    return next(from, to);
}

static int may_have(size_t n) {
    static _Atomic int is_spent;
    long most = n >= 4096 && getenv("FAULTS") ? rule("alloc", NULL) : 0;
    if (!most || n < (size_t) most) return 1;
    if (!is_on()) {
        is_spent = 0;
        return 1;
    }
    return atomic_exchange(&is_spent, 1);
}

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

void *malloc(size_t n) {
    if (may_have(n)) return __libc_malloc(n);
    errno = ENOMEM;
    return NULL;
}

void *calloc(size_t n, size_t size) {
    if (may_have(n * size)) return __libc_calloc(n, size);
    errno = ENOMEM;
    return NULL;
}

void *realloc(void *data, size_t n) {
    if (may_have(n)) return __libc_realloc(data, n);
    errno = ENOMEM;
    return NULL;
}

int posix_memalign(void **data, size_t alignment, size_t n) {
    if (!may_have(n)) return ENOMEM;
    *data = __libc_memalign(alignment, n);
    return *data ? 0 : ENOMEM;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    REAL(pthread_create);
    long error = rule("thread", NULL);
    return error && is_on() ? (int) error : next(thread, attributes, run, argument);
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **answers) {
    REAL(getaddrinfo);
    long seconds = rule("resolve", NULL);
    if (!seconds || !is_on() || !node || strspn(node, "0123456789.:") == strlen(node) || !strcmp(node, "localhost"))
        return next(node, service, hints, answers);
    sleep(seconds);
    return EAI_AGAIN;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int answer = next(clock, now);
    if (!answer && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) && getenv("FAULTS"))
        if (rule("clock", NULL) && is_on()) now->tv_sec += rule("clock", NULL);
    return answer;
}
