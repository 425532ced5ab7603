/* Parameter groups from a file; groups.h has the format. */
#ifndef TIDE_TOOLS_GROUP_FILE_H
#define TIDE_TOOLS_GROUP_FILE_H

#include "common/groups.h"

/* As tdi_params_load, of a file only. */
tide_status tdi_group_file_load(const char *path, double scale,
                                tdi_params *list);

/* dim / scale, but at least 1 unless dim is 0. */
uint64_t tdi_scale_dim(uint64_t dim, double scale);

#endif
