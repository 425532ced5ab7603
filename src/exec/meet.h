/* How ranks agree while a communicator is created. */
#ifndef TIDE_EXEC_MEET_H
#define TIDE_EXEC_MEET_H

#include <tide/comm.h>

/* One exchange, with TIDE_ERR_PEER if the bootstrap fails. */
tide_status tdi_meet_exchange(const tide_bootstrap *bootstrap, const void *send,
                              void *recv, size_t bytes);

/* First meeting: every rank's version, size and settings; they must be equal.
 * machines[r] tells where rank r runs. */
tide_status tdi_meet(const tide_bootstrap *bootstrap,
                     const tide_comm_config *config, uint64_t *machines,
                     tide_topology *topology);

/* All ranks tell their status; all return the first bad one, with a message
 * that names the rank. */
tide_status tdi_meet_agree(const tide_bootstrap *bootstrap, tide_status status);

#endif
