/* Compares texts with tests/golden. */
#include "golden.h"

#include "check.h"

#include <stdbool.h>

static char *read_file(const char *path)
{
    FILE *from = fopen(path, "r");
    if (!from)
        CHECK_FAIL("%s is missing: run this test in the source folder with "
                   "TIDE_UPDATE_GOLDEN=1 and look at what it writes",
                   path);
    char *text = NULL;
    size_t bytes = 0;
    if (getdelim(&text, &bytes, '\0', from) < 0)
        *(text = realloc(text, 1)) = '\0';
    fclose(from);
    return text;
}

static void compare(const char *path, const char *found, const char *kept)
{
    for (int line = 1; *found || *kept; line++) {
        size_t a = strcspn(found, "\n"), b = strcspn(kept, "\n");
        if (a != b || strncmp(found, kept, a))
            CHECK_FAIL("%s:%d: now \"%.*s\", kept \"%.*s\"; if that is meant, "
                       "run with TIDE_UPDATE_GOLDEN=1",
                       path, line, (int)a, found, (int)b, kept);
        found += a + (found[a] != 0);
        kept += b + (kept[b] != 0);
    }
}

void check_golden(const char *name,
                  void (*write)(FILE *to, const void *context),
                  const void *context)
{
    char path[256], *found = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof(path), "tests/golden/%s", name);
    const char *update = getenv("TIDE_UPDATE_GOLDEN");
    bool updates = update && *update == '1';
    FILE *to = updates ? fopen(path, "w") : open_memstream(&found, &bytes);
    CHECK(to);
    write(to, context);
    CHECK(!fclose(to));
    if (updates)
        return;
    char *kept = read_file(path);
    compare(path, found, kept);
    free(found);
    free(kept);
}
