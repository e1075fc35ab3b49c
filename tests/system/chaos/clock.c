/* Sets the wall clock of the processes it is preloaded into, and of nobody else.

   $CHAOS_CLOCK is a file of eight bytes: by how many nanoseconds the wall clock is off, shared
   with whoever writes it. The monotonic clock and every other call stay as they are. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) offset = page;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (failed || !offset || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    int64_t at = now->tv_sec * 1000000000LL + now->tv_nsec + *offset;
    now->tv_sec = at / 1000000000LL;
    now->tv_nsec = at % 1000000000LL;
    return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec at;
    int failed = clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *now) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (now) *now = at.tv_sec;
    return at.tv_sec;
}
