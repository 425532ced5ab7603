/* Values in memory: streams that wait for them, and who wakes them. */
#include "fake.h"

#include <stdio.h>
#include <time.h>

typedef struct waiter {
    struct waiter *next;
    const char *at;
    bool is_host;
    pthread_cond_t changed;
} waiter;

static struct {
    pthread_mutex_t lock;
    waiter *first;
    atomic_uint count;
} waiters = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int64_t distance(const char *at, uint64_t value)
{
    return (int64_t)(__atomic_load_n((const uint64_t *)at, __ATOMIC_SEQ_CST) -
                     value);
}

/* The host itself, or another process, may write there and says nothing: look
 * again in a while. */
static void look_again(waiter *me)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += fake_has_processes() ? 200000 : 5000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&me->changed, &waiters.lock, &until);
}

/* Host memory may be mapped at several addresses, which a race detector takes
 * for different memory: one counter for equal offsets shows it the order. */
static atomic_uint *order_of(const fake_view *view)
{
    enum { COUNTERS = 4096 };
    static atomic_uint counters[COUNTERS];
    return &counters[view->offset / sizeof(uint64_t) % COUNTERS];
}

static void await_value(int device, const fake_view *view, uint64_t value)
{
    waiter me = {.at = view->at[0],
                 .is_host = view->is_host,
                 .changed = PTHREAD_COND_INITIALIZER};
    waiter **link;
    uint64_t since = 0;
    char what[80];
    if (distance(me.at, value) >= 0)
        return;
    snprintf(what, sizeof(what), "the value %llu at %llu of %s memory",
             (unsigned long long)value, (unsigned long long)view->offset,
             view->is_host ? "host" : "device");
    pthread_mutex_lock(&waiters.lock);
    me.next = waiters.first;
    waiters.first = &me;
    waiters.count++;
    while (distance(me.at, value) < 0) {
        fake_note_wait(&since, what, device);
        if (me.is_host || fake_has_processes())
            look_again(&me);
        else
            fake_wait(&me.changed, &waiters.lock, &since, what, device);
    }
    for (link = &waiters.first; *link != &me; link = &(*link)->next)
        continue;
    *link = me.next;
    waiters.count--;
    pthread_mutex_unlock(&waiters.lock);
    pthread_cond_destroy(&me.changed);
}

void fake_wait_value(int device, const fake_view *view, uint64_t value)
{
    await_value(device, view, value);
    atomic_load(order_of(view));
}

/* Host memory may be mapped at several addresses: all who wait there look. */
void fake_written(const fake_view *view, uint64_t bytes)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (!waiters.count)
        return;
    pthread_mutex_lock(&waiters.lock);
    for (waiter *one = waiters.first; one; one = one->next)
        for (uint32_t m = 0; m < view->members; m++)
            if ((view->is_host && one->is_host) ||
                (uint64_t)(one->at - view->at[m]) < bytes)
                pthread_cond_signal(&one->changed);
    pthread_mutex_unlock(&waiters.lock);
}

void fake_write_value(const fake_view *view, uint64_t value)
{
    atomic_fetch_add(order_of(view), 1);
    for (uint32_t m = 0; m < view->members; m++)
        __atomic_store_n((uint64_t *)view->at[m], value, __ATOMIC_SEQ_CST);
    fake_written(view, sizeof(value));
}
