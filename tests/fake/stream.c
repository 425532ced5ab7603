/*
 * Streams: queues of work, each with a thread. A stream has a queue of its
 * own, or with FAKE_CONNECTIONS=n the streams of a device share n queues in
 * the order of their creation, as streams share hardware queues: what stands
 * behind a wait in the same queue waits too.
 */
#include "fake.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONNECTIONS = 128, STACK_BYTES = 256 << 10, PIECES = 4 };

struct fake_queue {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    fake_work *first;
    fake_work **last;
    bool running; /* has a thread */
    bool closing; /* its stream is destroyed: the thread ends when it is dry */
    uint64_t random;
};

enum { ALIVE = 0x73747265, DESTROYED = 0x64656164 };

/* Streams are never freed, so that use of a destroyed one is seen. */
struct CUstream_st {
    struct CUstream_st *next;
    atomic_uint state;
    fake_queue *queue;
    int device;
    bool non_blocking;
    bool owns_queue;
    atomic_ulong queued;
    atomic_ulong done;
    pthread_mutex_t lock; /* for sleeping until done changes */
    pthread_cond_t changed;
};

static struct {
    pthread_mutex_t lock;
    cu_stream first;
    uint64_t count;
    cu_stream defaults[FAKE_MAX_DEVICES];
    fake_queue *shared[FAKE_MAX_DEVICES][MAX_CONNECTIONS];
    unsigned made[FAKE_MAX_DEVICES];
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int64_t delay_us;
static pthread_once_t delay_once = PTHREAD_ONCE_INIT;

static void read_delay(void)
{
    delay_us = fake_setting("FAKE_DELAY_US", 20);
}

void fake_dawdle(uint64_t *random)
{
    uint64_t dice = fake_random(random);
    pthread_once(&delay_once, read_delay);
    if (!delay_us || dice % 4)
        sched_yield();
    else
        fake_sleep_us(dice / 4 % (uint64_t)delay_us * 2);
}

/* --- Workers -------------------------------------------------------------- */

static fake_queue *make_queue(uint64_t number)
{
    fake_queue *queue = calloc(1, sizeof(*queue));
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->changed, NULL);
    queue->last = &queue->first;
    queue->random =
        (uint64_t)fake_setting("FAKE_SEED", 1) * 1000003 + number * 7919 + 1;
    return queue;
}

static fake_work *take_work(fake_queue *queue)
{
    fake_work *work;
    pthread_mutex_lock(&queue->lock);
    while (!queue->first && !queue->closing)
        pthread_cond_wait(&queue->changed, &queue->lock);
    work = queue->first;
    if (work) {
        queue->first = work->next;
        if (!queue->first)
            queue->last = &queue->first;
    }
    pthread_mutex_unlock(&queue->lock);
    return work;
}

static void finish_work(fake_work *work)
{
    cu_stream stream = work->stream;
    free(work->extra);
    free(work);
    pthread_mutex_lock(&stream->lock);
    stream->done++;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

static void *serve_queue(void *context)
{
    fake_queue *queue = context;
    for (fake_work *work; (work = take_work(queue));) {
        work->random = &queue->random;
        fake_dawdle(&queue->random);
        work->run(work);
        finish_work(work);
    }
    free(queue);
    return NULL;
}

static void start_worker(fake_queue *queue)
{
    pthread_attr_t how;
    pthread_t thread;
    pthread_attr_init(&how);
    pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&how, STACK_BYTES);
    if (pthread_create(&thread, &how, serve_queue, queue))
        fake_fail("no thread for a stream");
    pthread_attr_destroy(&how);
    queue->running = true;
}

void *fake_work_new(size_t bytes, void (*run)(fake_work *))
{
    fake_work *work = calloc(1, bytes);
    if (!work)
        fake_fail("no memory for work");
    work->run = run;
    return work;
}

void fake_queue_work(cu_stream stream, fake_work *work)
{
    fake_queue *queue = stream->queue;
    work->stream = stream;
    stream->queued++;
    pthread_mutex_lock(&queue->lock);
    *queue->last = work;
    queue->last = &work->next;
    if (!queue->running)
        start_worker(queue);
    pthread_cond_signal(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}

/* --- Streams -------------------------------------------------------------- */

/* Lock held. */
static fake_queue *pick_queue(cu_stream stream)
{
    int64_t connections = fake_setting("FAKE_CONNECTIONS", 0);
    stream->owns_queue = connections <= 0;
    if (connections <= 0)
        return make_queue(all.count);
    if (connections > MAX_CONNECTIONS)
        connections = MAX_CONNECTIONS;
    unsigned slot = all.made[stream->device]++ % (unsigned)connections;
    fake_queue **queue = &all.shared[stream->device][slot];
    if (!*queue)
        *queue = make_queue(all.count);
    return *queue;
}

/* Lock held. */
static cu_stream make_stream(int device, bool non_blocking)
{
    cu_stream stream = calloc(1, sizeof(*stream));
    stream->state = ALIVE;
    stream->device = device;
    stream->non_blocking = non_blocking;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    stream->next = all.first;
    all.first = stream;
    all.count++;
    stream->queue = pick_queue(stream);
    return stream;
}

cu_stream fake_stream_create(int device, bool non_blocking)
{
    pthread_mutex_lock(&all.lock);
    cu_stream stream = make_stream(device, non_blocking);
    pthread_mutex_unlock(&all.lock);
    return stream;
}

int fake_device_of(cu_stream stream)
{
    return stream->device;
}

cu_stream fake_stream(cu_stream stream, int device, const char *call)
{
    if (!stream) {
        pthread_mutex_lock(&all.lock);
        if (!all.defaults[device])
            all.defaults[device] = make_stream(device, false);
        stream = all.defaults[device];
        pthread_mutex_unlock(&all.lock);
    }
    if (stream->state != ALIVE)
        fake_fail("%s on %p, which is %s", call, (void *)stream,
                  stream->state == DESTROYED ? "a destroyed stream"
                                             : "no stream");
    return stream;
}

bool fake_stream_idle(cu_stream stream)
{
    return stream->done == stream->queued;
}

void fake_stream_finish(cu_stream stream)
{
    unsigned long target = stream->queued;
    uint64_t since = 0;
    pthread_mutex_lock(&stream->lock);
    while (stream->done < target)
        fake_wait(&stream->changed, &stream->lock, &since,
                  "the end of a stream, on the host", stream->device);
    pthread_mutex_unlock(&stream->lock);
}

/* The work that is queued still runs, as in CUDA. */
void fake_stream_destroy(cu_stream stream)
{
    fake_queue *queue = stream->queue;
    if (fake_setting("FAKE_CHECK_BUSY", 0) && !fake_stream_idle(stream))
        fake_fail("a stream of device %d is destroyed while it has work",
                  stream->device);
    stream->state = DESTROYED;
    if (!stream->owns_queue)
        return;
    pthread_mutex_lock(&queue->lock);
    bool running = queue->running;
    queue->closing = true;
    pthread_cond_signal(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    if (!running)
        free(queue);
}

/* --- Copies --------------------------------------------------------------- */

static void move_rows(const fake_view *to, uint64_t to_pitch,
                      const fake_view *from, uint64_t from_pitch,
                      uint64_t width, uint64_t height)
{
    for (uint64_t row = 0; row < height; row++)
        for (uint32_t m = 0; m < to->members; m++)
            memcpy(to->at[m] + row * to_pitch, from->at[0] + row * from_pitch,
                   width);
}

static fake_view shifted(const fake_view *view, uint64_t bytes)
{
    fake_view moved = {.members = view->members};
    for (uint32_t m = 0; m < view->members; m++)
        moved.at[m] = view->at[m] + bytes;
    return moved;
}

/* Part `i` of `total` begins here. */
static uint64_t cut(uint64_t total, unsigned parts, unsigned i)
{
    return total / parts * i + (i == parts ? total % parts : 0);
}

void fake_move(const fake_view *to, uint64_t to_pitch, const fake_view *from,
               uint64_t from_pitch, uint64_t width, uint64_t height,
               uint64_t *random)
{
    unsigned parts = 1 + (unsigned)(fake_random(random) % PIECES);
    bool by_row = height >= parts;
    for (unsigned i = 0; i < parts; i++) {
        uint64_t first = cut(by_row ? height : width, parts, i);
        uint64_t last = cut(by_row ? height : width, parts, i + 1);
        fake_view a = shifted(to, by_row ? first * to_pitch : first);
        fake_view b = shifted(from, by_row ? first * from_pitch : first);
        move_rows(&a, to_pitch, &b, from_pitch, by_row ? width : last - first,
                  by_row ? last - first : height);
        if (i + 1 < parts)
            fake_dawdle(random);
    }
    fake_written(to, (height - 1) * to_pitch + width);
}
