/* Runs the verifiers over plans, right and wrong ones. */
#include "verify_all.h"

#include "check.h"

#include "base/util.h"
#include "plan/verify.h"

const tide_plan_options plan_pull = {.coll = TIDE_ALL_GATHER};
const tide_plan_options plan_push = {.coll = TIDE_ALL_GATHER, .push = 1};
const tide_plan_options plan_paced = {
    .coll = TIDE_ALL_GATHER, .chunk_bytes = 16, .window = 1};
const tide_plan_options plan_direct = {.coll = TIDE_REDUCE_SCATTER,
                                       .unit_bytes = 1};
const tide_plan_options plan_staged = {.coll = TIDE_REDUCE_SCATTER,
                                       .staged = 1,
                                       .block_bytes = 64,
                                       .unit_bytes = 1};
const tide_plan_options plan_own = {.coll = TIDE_REDUCE_SCATTER,
                                    .staged = 1,
                                    .block_bytes = 256,
                                    .unit_bytes = 1};

tide_status verify_all(const tide_layout *layout, const tide_plan *const *plans,
                       verify_check *at)
{
    *at = BOUNDS;
    TDI_TRY(tide_verify_bounds(layout, plans));
    *at = SYNC;
    TDI_TRY(tide_verify_sync(plans));
    *at = ORDER;
    TDI_TRY(tide_verify_order(layout, plans));
    *at = RESULT;
    return tide_verify_result(layout, plans);
}

void check_plan_fault(const plan_fault *fault)
{
    const char *group = fault->options == &plan_own ? "plain" : "uneven";
    planset set =
        make_plans(find_group(group), (tide_topology){2, 2}, fault->options);
    tide_plan *plans[4], *clones[2];
    memcpy(plans, set.plans, sizeof(plans));
    for (int r = fault->both ? 0 : 1; r < 2; r++) {
        plans[r] = clones[r] = clone_plan(set.plans[r]);
        fault->broken(clones[r]);
    }
    verify_check at;
    tide_status status =
        verify_all(set.layout, (const tide_plan *const *)plans, &at);
    if (status != TIDE_ERR_PLAN || at != fault->at)
        CHECK_FAIL("%s: %s by check %d, not %d: %s", fault->name,
                   tide_status_name(status), at, fault->at, tide_last_error());
    for (size_t i = 0; i < TDI_COUNT(fault->texts) && fault->texts[i]; i++)
        if (!strstr(tide_last_error(), fault->texts[i]))
            CHECK_FAIL("%s: \"%s\" lacks \"%s\"", fault->name,
                       tide_last_error(), fault->texts[i]);
    for (int r = fault->both ? 0 : 1; r < 2; r++)
        free(clones[r]);
    free_plans(&set);
}
