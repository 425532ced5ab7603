/* The making of requests: what both collectives share. */
#ifndef TIDE_EXEC_REQUEST_H
#define TIDE_EXEC_REQUEST_H

#include "exec/comm.h"

/*
 * Makes the next request of a flow: waits until at most one earlier one is
 * under way, sees that scratch is large enough, counts its signals. It is not
 * in the queue yet: fill it in, then tdi_request_enqueue publishes it.
 */
tide_status tdi_request_create(tide_group *group, tdi_flow_id flow,
                               const tdi_bound *bound, tide_request **request);
void tdi_request_enqueue(tide_request *request);
/* Frees a request that was never enqueued. */
void tdi_request_drop(tide_request *request);

#endif
