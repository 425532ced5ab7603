/*
 * Tasks that take time and share resources.
 *
 * A task alone takes a given time, and uses an even amount a microsecond of
 * each of its resources. A resource that is wanted beyond its capacity slows
 * all of its users by the same factor; a task goes at the pace of its slowest
 * resource. So a full link stays full, whoever uses it.
 */
#ifndef TIDE_SIM_ENGINE_H
#define TIDE_SIM_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <tide/status.h>

typedef struct tdi_engine tdi_engine;

typedef struct tdi_use {
    uint32_t resource;
    double amount; /* of the whole task */
} tdi_use;

/* A task has ended, or a message is due. */
typedef struct tdi_event {
    bool is_message;
    uint32_t task;
    uint64_t message;
} tdi_event;

/* Tasks and resources are numbers from 0. Error: TIDE_ERR_MEMORY. */
tide_status tdi_engine_create(uint32_t tasks, uint32_t resources,
                              tdi_engine **engine);
void tdi_engine_free(tdi_engine *engine); /* NULL is fine */

/* Amount a microsecond; 0 does not limit (and is so from the start). */
void tdi_engine_limit(tdi_engine *engine, uint32_t resource, double capacity);
/* Starts a task that does not run. A failed allocation shows in next. */
void tdi_engine_start(tdi_engine *engine, uint32_t task, double us,
                      const tdi_use *uses, uint32_t count);
void tdi_engine_post(tdi_engine *engine, double us, uint64_t message);

/* Goes on to the next event; *some is false when there is none. Events of one
 * moment come in the order in which they were caused. */
tide_status tdi_engine_next(tdi_engine *engine, tdi_event *event, bool *some);
double tdi_engine_now(const tdi_engine *engine);

#endif
