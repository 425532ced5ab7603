/* Tasks that share resources, and when they end. */
#include "support/sim.h"

#include "sim/engine.h"

static double next_end(tdi_engine *engine, uint32_t task)
{
    tdi_event event;
    bool some;
    CHECK_OK(tdi_engine_next(engine, &event, &some));
    CHECK(some && !event.is_message);
    CHECK_INT(event.task, ==, task);
    return tdi_engine_now(engine);
}

/* Two tasks of 10 us that fill a resource each: the first runs alone for 5 us,
 * then both at half speed; when it ends, the other has 5 us of work left. */
static void test_sharing(void)
{
    tdi_engine *engine;
    tdi_event event;
    bool some;
    tdi_use all = {0, 100}, other = {1, 100};
    CHECK_OK(tdi_engine_create(4, 2, &engine));
    tdi_engine_limit(engine, 0, 10);
    tdi_engine_start(engine, 0, 10, &all, 1);
    tdi_engine_post(engine, 5, 77);
    CHECK_OK(tdi_engine_next(engine, &event, &some));
    CHECK(some && event.is_message && event.message == 77);
    tdi_engine_start(engine, 1, 10, &all, 1);
    tdi_engine_start(engine, 2, 8, &other, 1); /* no limit there */
    CHECK_NEAR(next_end(engine, 2), 13, 1e-12);
    CHECK_NEAR(next_end(engine, 0), 15, 1e-12);
    CHECK_NEAR(next_end(engine, 1), 20, 1e-12);
    tdi_engine_start(engine, 3, 0, NULL, 0);
    CHECK_NEAR(next_end(engine, 3), 20, 1e-12);
    for (uint32_t i = 4; i--;) /* equal times: as they were started */
        tdi_engine_start(engine, i, 1, NULL, 0);
    for (uint32_t i = 4; i--;)
        CHECK_NEAR(next_end(engine, i), 21, 1e-12);
    CHECK_OK(tdi_engine_next(engine, &event, &some));
    CHECK(!some);
    tdi_engine_free(engine);
}

/* A task that uses a resource twice wants it twice, and ends once. */
static void test_double_use(void)
{
    tdi_engine *engine;
    tdi_event event;
    bool some;
    tdi_use twice[] = {{0, 100}, {0, 100}}, once = {0, 100};
    CHECK_OK(tdi_engine_create(2, 1, &engine));
    tdi_engine_limit(engine, 0, 10);
    tdi_engine_start(engine, 0, 10, twice, 2);
    tdi_engine_start(engine, 1, 20, &once, 1);
    CHECK_NEAR(next_end(engine, 0), 25, 1e-12);
    CHECK_NEAR(next_end(engine, 1), 35, 1e-12);
    CHECK_OK(tdi_engine_next(engine, &event, &some));
    CHECK(!some);
    tdi_engine_free(engine);
}

int main(void)
{
    test_sharing();
    test_double_use();
    return 0;
}
