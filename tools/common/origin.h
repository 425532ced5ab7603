/* What a result comes from: the tool, its version and its command line. */
#ifndef TIDE_TOOLS_ORIGIN_H
#define TIDE_TOOLS_ORIGIN_H

#include "common/json.h"

/* The commit that was built, or "unknown". */
const char *tdi_origin_commit(void);
/* Writes it into an open object. */
void tdi_origin_json(tdi_json *json, const char *tool, int argc, char **argv);

#endif
