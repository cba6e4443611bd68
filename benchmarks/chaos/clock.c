/* Shift the wall clock of one process: loaded before libc (LD_PRELOAD), adds the seconds in the file that
   EVERGREEN_CHAOS_CLOCK names. The monotonic clock, on which sleeps and timeouts depend, does not change, as in a
   real clock jump. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long offset(void) {
    static __thread time_t read_at;
    static __thread long seconds;
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    struct timespec now;
    real(CLOCK_MONOTONIC, &now);
    if (now.tv_sec != read_at) {
        const char *name = getenv("EVERGREEN_CHAOS_CLOCK");
        FILE *file = name ? fopen(name, "r") : NULL;
        read_at = now.tv_sec;
        if (file) {
            if (fscanf(file, "%ld", &seconds) != 1) seconds = 0;
            fclose(file);
        }
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
    return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (out) *out = precise.tv_sec;
    return precise.tv_sec;
}
