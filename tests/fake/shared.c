/*
 * Ranks that are processes: what they share lies in one file that the parent
 * made before it forked them (FAKE_SHARED is its descriptor), mapped at one
 * address everywhere. Locks there work between processes.
 */
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHARED_AT    ((void *)0x7e0000000000)
#define SHARED_BYTES (64ull << 20)

static pthread_once_t once = PTHREAD_ONCE_INIT;
static fake_world *world;
static fake_world own;

static void init_world(fake_world *made, uint64_t bytes)
{
    fake_lock_init(&made->lock, NULL);
    made->next = (sizeof(*made) + 63) & ~63ull;
    made->bytes = bytes;
}

/* Whoever comes first prepares it. */
static void map_world(int file)
{
    unsigned none = 0;
    world = mmap(SHARED_AT, SHARED_BYTES, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
    if (world != SHARED_AT)
        fake_fail("no room for what processes share");
    if (atomic_compare_exchange_strong(&world->state, &none, 1)) {
        init_world(world, SHARED_BYTES);
        world->state = 2;
    }
    while (world->state != 2)
        fake_sleep_us(100);
}

static void open_world(void)
{
    int file = (int)fake_setting("FAKE_SHARED", -1);
    if (file >= 0) {
        map_world(file);
        return;
    }
    init_world(&own, 0);
    world = &own;
}

fake_world *fake_get_world(void)
{
    pthread_once(&once, open_world);
    return world;
}

bool fake_has_processes(void)
{
    return fake_setting("FAKE_SHARED", -1) >= 0;
}

void *fake_shared_alloc(size_t bytes)
{
    if (!fake_has_processes())
        return calloc(1, bytes);
    uint64_t size = (bytes + 63) & ~63ull;
    uint64_t at = atomic_fetch_add(&fake_get_world()->next, size);
    if (at + size > fake_get_world()->bytes)
        fake_fail("no room for %zu bytes that processes share", bytes);
    return (char *)fake_get_world() + at;
}

void fake_lock_init(pthread_mutex_t *lock, pthread_cond_t *changed)
{
    pthread_mutexattr_t how;
    pthread_condattr_t when;
    pthread_mutexattr_init(&how);
    pthread_condattr_init(&when);
    if (fake_has_processes()) {
        pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
        pthread_condattr_setpshared(&when, PTHREAD_PROCESS_SHARED);
    }
    pthread_mutex_init(lock, &how);
    if (changed)
        pthread_cond_init(changed, &when);
    pthread_mutexattr_destroy(&how);
    pthread_condattr_destroy(&when);
}

int fake_open_file(int pid, int file)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, file);
    int opened = open(path, O_RDWR | O_CLOEXEC);
    if (opened < 0)
        fake_fail("cannot open %s: %s", path, strerror(errno));
    return opened;
}
