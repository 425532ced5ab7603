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
/* Waits for all requests of both flows; where they are queued on a device, for
 * none: those get on without the host. */
tide_status tdi_request_settle(tide_comm *comm);
/* TIDE_ERR_INVALID if a request of the flow before `until` (NULL: any) was
 * begun and not started. */
tide_status tdi_request_check_started(const tide_comm *comm, tdi_flow_id flow,
                                      const tide_request *until);
/* The group's tables of a collective; made at the first need. */
tide_status tdi_request_make_tables(tide_group *group, tide_coll coll);
/* This request's. */
tdi_grad_entry *tdi_request_table(const tide_request *request);
/* Gives back the ranges that peers have read. */
void tdi_request_release(tide_request *request);
/* Frees a request that is in no queue. */
void tdi_request_drop(tide_request *request);

#endif
