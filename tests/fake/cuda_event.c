/* The driver's events. */
#include "fake.h"

#include <stdlib.h>

/* One recording: what a wait waits for, whatever becomes of the event. */
typedef struct recording {
    atomic_uint references;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
    uint64_t time_us;
} recording;

enum { ALIVE = 0x65766e74, DESTROYED = 0x64656164 };

/* Never freed, so that use of a destroyed one is seen. */
struct CUevent_st {
    struct CUevent_st *next;
    unsigned state;
    int device;
    bool timed;
    pthread_mutex_t lock;
    recording *latest;
};

static struct { /* keeps them reachable */
    pthread_mutex_t lock;
    cu_event first;
} events = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void drop_recording(recording *one)
{
    if (one && atomic_fetch_sub(&one->references, 1) == 1) {
        pthread_cond_destroy(&one->changed);
        free(one);
    }
}

static void check_event(cu_event event, const char *call)
{
    if (!event || event->state != ALIVE)
        fake_fail("%s of %p, which is %s", call, (void *)event,
                  event && event->state == DESTROYED ? "a destroyed event"
                                                     : "no event");
}

/* The event's latest recording, with a reference; NULL if there is none. */
static recording *latest_of(cu_event event, const char *call)
{
    check_event(event, call);
    pthread_mutex_lock(&event->lock);
    recording *latest = event->latest;
    if (latest)
        latest->references++;
    pthread_mutex_unlock(&event->lock);
    return latest;
}

static bool is_done(recording *one)
{
    pthread_mutex_lock(&one->lock);
    bool done = one->done;
    pthread_mutex_unlock(&one->lock);
    return done;
}

static void await_recording(recording *one, const char *what, int device)
{
    uint64_t since = 0;
    pthread_mutex_lock(&one->lock);
    while (!one->done)
        fake_wait(&one->changed, &one->lock, &since, what, device);
    pthread_mutex_unlock(&one->lock);
}

typedef struct event_work {
    fake_work work;
    recording *recording;
} event_work;

static void run_record(fake_work *work)
{
    recording *one = ((event_work *)work)->recording;
    pthread_mutex_lock(&one->lock);
    one->done = true;
    one->time_us = fake_now_us();
    pthread_cond_broadcast(&one->changed);
    pthread_mutex_unlock(&one->lock);
    drop_recording(one);
}

static void run_event_wait(fake_work *work)
{
    recording *one = ((event_work *)work)->recording;
    int device = fake_device_of(work->stream);
    if (!fake_fault("no_event_waits", device))
        await_recording(one, "an event", device);
    drop_recording(one);
}

cu_result cuEventCreate(cu_event *event, unsigned int flags)
{
    cu_device device;
    if (cuCtxGetDevice(&device))
        return FAKE_INVALID_CONTEXT;
    cu_event made = calloc(1, sizeof(*made));
    made->state = ALIVE;
    made->device = device;
    made->timed = !(flags & CU_EVENT_NO_TIMING);
    pthread_mutex_init(&made->lock, NULL);
    pthread_mutex_lock(&events.lock);
    made->next = events.first;
    events.first = made;
    pthread_mutex_unlock(&events.lock);
    *event = made;
    return CU_OK;
}

cu_result cuEventDestroy_v2(cu_event event)
{
    cu_device device;
    if (cuCtxGetDevice(&device))
        return FAKE_INVALID_CONTEXT;
    check_event(event, "cuEventDestroy");
    if (fake_setting("FAKE_CHECK_BUSY", 0) && event->latest &&
        !is_done(event->latest))
        fake_fail("an event is destroyed that is not reached yet");
    event->state = DESTROYED;
    drop_recording(event->latest);
    event->latest = NULL;
    return CU_OK;
}

cu_result cuEventRecord(cu_event event, cu_stream stream)
{
    cu_device device;
    if (cuCtxGetDevice(&device))
        return FAKE_INVALID_CONTEXT;
    check_event(event, "cuEventRecord");
    stream = fake_stream(stream, device, "cuEventRecord");
    if (event->device != fake_device_of(stream))
        return FAKE_INVALID_HANDLE;
    recording *made = calloc(1, sizeof(*made));
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    made->references = 2; /* the event's and the work's */
    event_work *work = fake_work_new(sizeof(*work), run_record);
    work->recording = made;
    pthread_mutex_lock(&event->lock);
    drop_recording(event->latest);
    event->latest = made;
    pthread_mutex_unlock(&event->lock);
    fake_queue_work(stream, &work->work);
    return CU_OK;
}

/* Waits for the recording that is the latest now; a later one changes
 * nothing. An event that was never recorded holds nobody back. */
cu_result cuStreamWaitEvent(cu_stream stream, cu_event event,
                            unsigned int flags)
{
    cu_device device;
    (void)flags;
    if (cuCtxGetDevice(&device))
        return FAKE_INVALID_CONTEXT;
    stream = fake_stream(stream, device, "cuStreamWaitEvent");
    recording *latest = latest_of(event, "cuStreamWaitEvent");
    if (!latest)
        return CU_OK;
    event_work *work = fake_work_new(sizeof(*work), run_event_wait);
    work->recording = latest;
    fake_queue_work(stream, &work->work);
    return CU_OK;
}

cu_result cuEventQuery(cu_event event)
{
    cu_device device;
    if (cuCtxGetDevice(&device))
        return FAKE_INVALID_CONTEXT;
    recording *latest = latest_of(event, "cuEventQuery");
    bool done = !latest || is_done(latest);
    drop_recording(latest);
    return done ? CU_OK : CU_ERROR_NOT_READY;
}

cu_result cuEventSynchronize(cu_event event)
{
    cu_device device;
    if (cuCtxGetDevice(&device))
        return FAKE_INVALID_CONTEXT;
    recording *latest = latest_of(event, "cuEventSynchronize");
    if (latest)
        await_recording(latest, "an event, on the host", event->device);
    drop_recording(latest);
    return CU_OK;
}

cu_result cuEventElapsedTime(float *ms, cu_event start, cu_event end)
{
    cu_device device;
    if (cuCtxGetDevice(&device))
        return FAKE_INVALID_CONTEXT;
    recording *a = latest_of(start, "cuEventElapsedTime");
    recording *b = latest_of(end, "cuEventElapsedTime");
    cu_result result = CU_OK;
    if (!a || !b || !start->timed || !end->timed)
        result = FAKE_INVALID_HANDLE;
    else if (!is_done(a) || !is_done(b))
        result = CU_ERROR_NOT_READY;
    else
        *ms = (float)((double)(b->time_us - a->time_us) / 1000.0);
    drop_recording(a);
    drop_recording(b);
    return result;
}
