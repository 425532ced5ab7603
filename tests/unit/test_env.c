/* Environment variables: defaults, bounds, nonsense, and the warning. */
#include "base/env.h"

#include "base/util.h"
#include "support/check.h"

#include <unistd.h>

static char said[4096]; /* on stderr during the last read */

/* tdi_env_number with stderr caught. */
static int64_t read_number(tdi_env id)
{
    int kept = dup(STDERR_FILENO);
    FILE *file = tmpfile();
    CHECK(kept >= 0 && file);
    fflush(stderr);
    CHECK(dup2(fileno(file), STDERR_FILENO) >= 0);
    int64_t value = tdi_env_number(id);
    fflush(stderr);
    CHECK(dup2(kept, STDERR_FILENO) >= 0);
    ssize_t bytes = pread(fileno(file), said, sizeof(said) - 1, 0);
    said[bytes > 0 ? bytes : 0] = '\0';
    fclose(file);
    close(kept);
    return value;
}

static void set_number(const tdi_env_entry *entry, int64_t value)
{
    char text[32];
    snprintf(text, sizeof(text), "%" PRId64, value);
    CHECK_INT(setenv(entry->name, text, 1), ==, 0);
}

static void check_table(void)
{
    for (int id = 0; id < TDI_ENV_COUNT; id++) {
        const tdi_env_entry *entry = &tdi_env_table[id];
        CHECK_INT(strncmp(entry->name, "TIDE_", 5), ==, 0);
        CHECK_INT(entry->low, <=, entry->value);
        CHECK_INT(entry->value, <=, entry->high);
        CHECK_INT(strlen(entry->text), >, 20);
        for (int other = 0; other < id; other++)
            CHECK_INT(strcmp(entry->name, tdi_env_table[other].name), !=, 0);
    }
}

static void read_good_values(tdi_env id)
{
    const tdi_env_entry *entry = &tdi_env_table[id];
    const int64_t good[] = {entry->low, entry->high, entry->value};
    unsetenv(entry->name);
    CHECK_INT(read_number(id), ==, entry->value);
    setenv(entry->name, "", 1);
    CHECK_INT(read_number(id), ==, entry->value);
    for (size_t i = 0; i < TDI_COUNT(good); i++) {
        set_number(entry, good[i]);
        CHECK_INT(read_number(id), ==, good[i]);
        CHECK_INT(said[0], ==, '\0');
    }
}

/* The default stands in, and the first time stderr hears of it. */
static void read_bad_values(tdi_env id)
{
    static const char *const bad[] = {
        "x", "1x", "0x", "1 ", "--1", "1.5", "true", "9999999999999999999999"};
    const tdi_env_entry *entry = &tdi_env_table[id];
    for (size_t i = 0; i < TDI_COUNT(bad); i++) {
        setenv(entry->name, bad[i], 1);
        CHECK_INT(read_number(id), ==, entry->value);
        if (i) {
            CHECK_INT(said[0], ==, '\0');
            continue;
        }
        CHECK_TEXT(said, entry->name);
        CHECK_TEXT(said, "=x is not a number");
    }
    set_number(entry, entry->low - 1);
    CHECK_INT(read_number(id), ==, entry->value);
    set_number(entry, entry->high + 1);
    CHECK_INT(read_number(id), ==, entry->value);
    unsetenv(entry->name);
}

int main(void)
{
    check_table();
    for (int id = 0; id < TDI_ENV_COUNT; id++) {
        read_good_values((tdi_env)id);
        read_bad_values((tdi_env)id);
    }
    return 0;
}
