/* The names of op kinds, lanes, buffers, channels and phases, as text. */
#ifndef TIDE_PLAN_NAMES_H
#define TIDE_PLAN_NAMES_H

#include <tide/plan.h>

/* "?" for a value outside the list. */
const char *tdi_op_name(unsigned kind);
const char *tdi_lane_name(unsigned lane);
const char *tdi_buffer_name(unsigned buffer);
const char *tdi_channel_name(unsigned channel);
const char *tdi_phase_name(unsigned phase);
const char *tdi_coll_name(tide_coll coll);

/* Writes one op as tide_plan_print does, without a line end; at most size - 1
 * bytes. Returns text. */
const char *tdi_op_text(const tide_op *op, char *text, size_t size);

#endif
