/* Settings of the fake from the environment, its failures, its clock. */
#include "fake.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

_Noreturn void fake_fail(const char *format, ...)
{
    va_list args;
    flockfile(stderr);
    fputs("fake: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    fflush(NULL);
    _exit(FAKE_EXIT);
}

int64_t fake_setting(const char *name, int64_t fallback)
{
    const char *text = getenv(name);
    char *end;
    if (!text || !*text)
        return fallback;
    errno = 0;
    int64_t value = strtoll(text, &end, 0);
    if (errno || *end)
        fake_fail("%s is \"%s\", not a number", name, text);
    return value;
}

bool fake_fault(const char *fault, int rank)
{
    const char *list = getenv("FAKE_FAULT");
    size_t length = strlen(fault);
    int64_t hit = fake_setting("FAKE_FAULT_RANK", -1);
    if (hit >= 0 && hit != rank)
        return false;
    while (list && *list) {
        size_t part = strcspn(list, ",");
        if (part == length && !memcmp(list, fault, length))
            return true;
        list += part + (list[part] == ',');
    }
    return false;
}

uint64_t fake_random(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545f4914f6cdd1du;
}

void fake_sleep_us(uint64_t us)
{
    struct timespec left = {(time_t)(us / 1000000),
                            (long)(us % 1000000) * 1000};
    while (nanosleep(&left, &left) && errno == EINTR)
        continue;
}

uint64_t fake_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

void fake_note_wait(uint64_t *since, const char *what, int device)
{
    uint64_t stuck = (uint64_t)fake_setting("FAKE_STUCK_MS", 30000) * 1000;
    if (!stuck || *since == UINT64_MAX) /* never, or said already */
        return;
    if (!*since)
        *since = fake_now_us();
    if (fake_now_us() - *since < stuck)
        return;
    fprintf(stderr, "fake: device %d has long waited for %s\n", device, what);
    *since = UINT64_MAX;
}

void fake_wait(pthread_cond_t *changed, pthread_mutex_t *lock, uint64_t *since,
               const char *what, int device)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    pthread_cond_timedwait(changed, lock, &until);
    fake_note_wait(since, what, device);
}
