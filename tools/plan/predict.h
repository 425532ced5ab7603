/* The predictions of tide-plan, as rows of tide-perf's table. */
#ifndef TIDE_TOOLS_PLAN_PREDICT_H
#define TIDE_TOOLS_PLAN_PREDICT_H

#include "common/table.h"
#include "plan/case.h"

typedef struct tdi_predictions {
    tdi_row *rows;
    size_t count;
    int mirrored; /* of any row: one node stood for all */
} tdi_predictions;

/* Checks the words of --variant. Error: TIDE_ERR_INVALID. */
tide_status tdi_variants_check(const char *list, tide_coll coll);

/*
 * Predicts every variant for every number of nodes and size, and prints the
 * table as it grows unless `to` is NULL. Times have no spread: min, p50 and
 * p99 are one. Errors: those of the cases and of tide_predict.
 */
tide_status tdi_predict_all(const tdi_plan_args *args,
                            const tide_machine *machine, FILE *to,
                            tdi_predictions *list);
void tdi_predictions_free(tdi_predictions *list);

/* "simulated on ...: ..." for both forms of output. */
const char *tdi_predictions_assume(int mirrored);

#endif
