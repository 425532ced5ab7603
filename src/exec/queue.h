/*
 * Requests on backends that queue their ops: the plan is queued in array order
 * when the call is made, and the device does the rest.
 *
 * Why array order: streams share hardware queues, and a wait in one of them
 * then holds back what was queued behind it in any other. A plan set whose ops
 * can run in array order, one after the other on every rank, cannot deadlock
 * by that (tests/unit/test_folded.c proves it for all plans of the matrix).
 */
#ifndef TIDE_EXEC_QUEUE_H
#define TIDE_EXEC_QUEUE_H

#include "exec/comm.h"

/* Which queues a plan uses, and which of its ops others wait for. */
tide_status tdi_queue_bind(const tide_comm *comm, tdi_bound *bound);
void tdi_queue_unbind(tdi_bound *bound);

/* Queues an all-gather's ops up to the mark FREE. */
tide_status tdi_queue_begin(tide_request *request);
/* Meets the peers and queues the rest. */
tide_status tdi_queue_start(tide_request *request, tide_stream stream);
/* Queues a copy of contiguous memory before the ops that read it, zeros where
 * `from` is NULL: for a gather between the two functions below, which put it
 * after the default stream, and the default stream after it. */
tide_status tdi_queue_fill(tide_request *request, char *to, const void *from,
                           uint64_t bytes);
/* What goes well needs its end, whatever comes of the fills between. */
tide_status tdi_queue_fill_begin(tide_request *request);
tide_status tdi_queue_fill_end(tide_request *request);

/* Takes requests that are through out of the flow. After a fault none is: its
 * status. */
tide_status tdi_queue_reap(tide_comm *comm, tdi_flow_id flow);
/* Waits on the host for the requests of a flow that were started. */
void tdi_queue_settle(tide_comm *comm, tdi_flow_id flow);
/* The same, and for what peers still owe on the channel. */
tide_status tdi_queue_drain(tide_comm *comm, tdi_flow_id flow,
                            tide_channel channel);
/* phase TIDE_PHASE_COUNT: all of the request. */
tide_status tdi_queue_reached(tide_request *request, tide_phase phase,
                              bool *reached);
tide_status tdi_queue_wait(tide_request *request, tide_phase phase);
/* Waits for the requests of a group whose plans are about to go, until the
 * deadline at most; after a fault it drops them. NULL: all groups. */
void tdi_queue_forget(tide_comm *comm, const tide_group *group);
/* Frees what a request holds of the backend. */
void tdi_queue_drop(tide_request *request);

/* watch.c: the thread that finds dead and late peers while the host is away.
 * It looks at the flows under this lock. */
tide_status tdi_watch_start(tide_comm *comm);
void tdi_watch_stop(tide_comm *comm);
/* What it has found, with its message. Any thread. */
tide_status tdi_watch_fault(tide_comm *comm);
void tdi_watch_lock(tide_comm *comm);
void tdi_watch_unlock(tide_comm *comm);

#endif
