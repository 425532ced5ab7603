/* Tasks, their resources and the clock; engine.h says how they share. */
#include "sim/engine.h"

#include "base/fail.h"
#include "sim/heap.h"

#include <stdlib.h>
#include <string.h>

typedef struct resource {
    double capacity;
    double load;     /* what its users want a microsecond */
    double slowdown; /* at least 1 */
    uint32_t *users;
    uint32_t count;
    uint32_t space;
} resource;

typedef struct task {
    tdi_use *uses;
    uint32_t count;
    uint32_t space;
    double alone; /* us */
    double left;  /* us, at full speed, when `since` was now */
    double since;
    double speed; /* 0 before the first retime */
    bool runs;
    uint32_t stamp; /* of its newest entry in the heap */
    uint64_t marked;
} task;

struct tdi_engine {
    double now;
    tdi_heap heap;
    resource *resources;
    uint32_t resource_count;
    task *tasks;
    uint32_t task_count;
    uint32_t *dirty; /* tasks whose speed may have changed */
    uint32_t dirty_count;
    uint64_t round; /* marks a task as dirty once */
    bool failed;
};

tide_status tdi_engine_create(uint32_t tasks, uint32_t resources,
                              tdi_engine **engine)
{
    tdi_engine *e = calloc(1, sizeof(*e));
    *engine = e;
    if (e) {
        e->tasks = calloc(tasks, sizeof(task));
        e->resources = calloc(resources, sizeof(resource));
        e->dirty = calloc(tasks, sizeof(uint32_t));
        e->task_count = tasks;
        e->resource_count = resources;
    }
    if (e && e->tasks && e->resources && e->dirty)
        return TIDE_OK;
    tdi_engine_free(e);
    *engine = NULL;
    return tdi_fail(TIDE_ERR_MEMORY, "no memory to simulate %u lanes", tasks);
}

void tdi_engine_free(tdi_engine *e)
{
    if (!e)
        return;
    for (uint32_t i = 0; e->tasks && i < e->task_count; i++)
        free(e->tasks[i].uses);
    for (uint32_t i = 0; e->resources && i < e->resource_count; i++)
        free(e->resources[i].users);
    free(e->tasks);
    free(e->resources);
    free(e->dirty);
    tdi_heap_free(&e->heap);
    free(e);
}

void tdi_engine_limit(tdi_engine *e, uint32_t at, double capacity)
{
    e->resources[at].capacity = capacity;
    e->resources[at].slowdown = 1;
}

double tdi_engine_now(const tdi_engine *e)
{
    return e->now;
}

/* Room for one more element in an array; false when memory is out. */
static bool grow(void **array, uint32_t count, uint32_t *space, size_t size)
{
    if (count < *space)
        return true;
    uint32_t more = *space ? 2 * *space : 8;
    void *grown = realloc(*array, more * size);
    if (!grown)
        return false;
    *array = grown;
    *space = more;
    return true;
}

static void mark_users(tdi_engine *e, const resource *r)
{
    for (uint32_t i = 0; i < r->count; i++) {
        task *t = &e->tasks[r->users[i]];
        if (t->marked == e->round)
            continue;
        t->marked = e->round;
        e->dirty[e->dirty_count++] = r->users[i];
    }
}

/* Adds what a task wants to a resource, or takes it away. */
static void change_load(tdi_engine *e, resource *r, double rate)
{
    r->load = r->count ? r->load + rate : 0;
    double slowdown = r->load > r->capacity ? r->load / r->capacity : 1;
    if (slowdown == r->slowdown)
        return;
    r->slowdown = slowdown;
    mark_users(e, r);
}

static void push(tdi_engine *e, double at, uint32_t who, uint64_t message)
{
    uint32_t stamp = who == UINT32_MAX ? 0 : ++e->tasks[who].stamp;
    tdi_entry entry = {.at = at, .value = message, .task = who, .stamp = stamp};
    e->failed |= !tdi_heap_push(&e->heap, entry);
}

/* Its speed may have changed: when does it end now? */
static void retime(tdi_engine *e, uint32_t who)
{
    task *t = &e->tasks[who];
    double slowdown = 1;
    if (!t->runs)
        return; /* it leaves: it may use a resource twice */
    for (uint32_t i = 0; i < t->count; i++) {
        const resource *r = &e->resources[t->uses[i].resource];
        if (r->slowdown > slowdown)
            slowdown = r->slowdown;
    }
    if (t->speed == 1 / slowdown)
        return;
    t->left -= (e->now - t->since) * t->speed;
    if (t->left < 0)
        t->left = 0;
    t->since = e->now;
    t->speed = 1 / slowdown;
    push(e, e->now + t->left * slowdown, who, 0);
}

static void retime_dirty(tdi_engine *e)
{
    for (uint32_t i = 0; i < e->dirty_count; i++)
        retime(e, e->dirty[i]);
    e->dirty_count = 0;
    e->round++;
}

static void join(tdi_engine *e, uint32_t who, const tdi_use *use)
{
    task *t = &e->tasks[who];
    resource *r = &e->resources[use->resource];
    if (r->capacity <= 0 || use->amount <= 0)
        return;
    if (!grow((void **)&t->uses, t->count, &t->space, sizeof(tdi_use)) ||
        !grow((void **)&r->users, r->count, &r->space, sizeof(uint32_t))) {
        e->failed = true;
        return;
    }
    t->uses[t->count++] = *use;
    r->users[r->count++] = who;
    change_load(e, r, use->amount / t->alone);
}

static void leave(tdi_engine *e, uint32_t who)
{
    task *t = &e->tasks[who];
    t->runs = false;
    for (uint32_t i = 0; i < t->count; i++) {
        resource *r = &e->resources[t->uses[i].resource];
        uint32_t at = 0;
        while (r->users[at] != who)
            at++;
        r->users[at] = r->users[--r->count];
        change_load(e, r, -t->uses[i].amount / t->alone);
    }
    t->count = 0;
    retime_dirty(e);
}

void tdi_engine_start(tdi_engine *e, uint32_t who, double us,
                      const tdi_use *uses, uint32_t count)
{
    task *t = &e->tasks[who];
    t->alone = us;
    t->left = us;
    t->since = e->now;
    t->speed = 0;
    t->runs = true;
    for (uint32_t i = 0; us > 0 && i < count; i++)
        join(e, who, &uses[i]);
    retime(e, who);
    retime_dirty(e);
}

void tdi_engine_post(tdi_engine *e, double us, uint64_t message)
{
    push(e, e->now + us, UINT32_MAX, message);
}

tide_status tdi_engine_next(tdi_engine *e, tdi_event *event, bool *some)
{
    tdi_entry entry;
    while ((*some = tdi_heap_pop(&e->heap, &entry))) {
        bool message = entry.task == UINT32_MAX;
        if (!message && entry.stamp != e->tasks[entry.task].stamp)
            continue; /* it was retimed since */
        e->now = entry.at;
        *event = (tdi_event){message, entry.task, entry.value};
        if (!message)
            leave(e, entry.task);
        break;
    }
    return e->failed ? tdi_fail(TIDE_ERR_MEMORY, "no memory to simulate")
                     : TIDE_OK;
}
