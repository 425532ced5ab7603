/* Names the tool, its version and its command line in JSON. */
#include "common/origin.h"

#include <tide/tide.h>

const char *tdi_origin_commit(void)
{
    return TIDE_COMMIT;
}

void tdi_origin_json(tdi_json *json, const char *tool, int argc, char **argv)
{
    tdi_json_text(json, "tool", tool);
    tdi_json_text(json, "version", tide_version());
    tdi_json_text(json, "commit", tdi_origin_commit());
    tdi_json_open(json, "arguments", '[');
    for (int i = 1; i < argc; i++)
        tdi_json_text(json, NULL, argv[i]);
    tdi_json_close(json, ']');
}
