/*
 * tide: FSDP2's collectives without the layout copies around them.
 *
 *  status.h  errors          layout.h  sharding arithmetic
 *  types.h   dtypes, ranks   plan.h    collectives as data, and their checks
 *  comm.h    communicators   coll.h    groups, all-gather, reduce-scatter
 *  sim.h     plans on a model of a machine
 */
#ifndef TIDE_TIDE_H
#define TIDE_TIDE_H

#include <tide/coll.h>
#include <tide/comm.h>
#include <tide/layout.h>
#include <tide/plan.h>
#include <tide/sim.h>
#include <tide/status.h>
#include <tide/types.h>

#endif
