/* Training steps of the built-in models, predicted. */
#ifndef TIDE_TOOLS_PLAN_STEP_H
#define TIDE_TOOLS_PLAN_STEP_H

#include <stdio.h>
#include <tide/sim.h>

#include "common/json.h"

/*
 * Predicts FSDP2 steps of a model on `nodes` nodes of the machine: stock,
 * SymmMem, tide In-Place and Slot-Reuse, prefetch 0 to 2, at several tokens a
 * GPU. A table to `to` and an array "steps" to `json`; either may be NULL.
 * Errors: TIDE_ERR_INVALID (no such model), those of tide_predict.
 */
tide_status tdi_step_predict(const char *model, const tide_machine *machine,
                             uint32_t nodes, FILE *to, tdi_json *json);

#endif
