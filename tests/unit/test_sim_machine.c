/* Machines: the built-in ones, and files with every kind of fault. */
#include "support/check.h"

#include <tide/sim.h>
#include <unistd.h>

static tide_status load_text(const char *text, tide_machine *machine)
{
    char path[] = "/tmp/tide-machine-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    CHECK_INT(write(fd, text, strlen(text)), ==, strlen(text));
    close(fd);
    tide_status status = tide_machine_load(path, machine);
    unlink(path);
    return status;
}

static void refuse_text(const char *text, const char *reason)
{
    tide_machine machine;
    CHECK_STATUS(load_text(text, &machine), TIDE_ERR_INVALID);
    CHECK_TEXT(tide_last_error(), reason);
}

static void test_machines(void)
{
    tide_machine machine;
    size_t count = 0;
    for (; tide_machine_name(count); count++) {
        CHECK_OK(tide_machine_load(tide_machine_name(count), &machine));
        CHECK(!strcmp(machine.name, tide_machine_name(count)));
        CHECK(machine.local_size >= 1);
    }
    CHECK_INT(count, ==, 4);
    CHECK_STATUS(tide_machine_load("no-such-machine", &machine),
                 TIDE_ERR_INVALID);
    CHECK_STATUS(tide_machine_load(NULL, &machine), TIDE_ERR_INVALID);
    CHECK_STATUS(tide_machine_load("b200-8x400g", NULL), TIDE_ERR_INVALID);
    refuse_text("", "'{' should");
    refuse_text("{} x", "nothing may follow");
    refuse_text("{\"name\": \"m\",\n\"speed\": 1}", "not a number of");
    refuse_text("{\"title\": \"m\"}", "not a text of");
    refuse_text("{\"sms\": 1, \"sms\": 1}", "there twice");
    refuse_text("{\"sms\": -1}", "negative");
    refuse_text("{\"sms\": 1e999}", "a number or a text");
    refuse_text("{\"sms\": 0x10}", "a number or a text");
    refuse_text("{\"sms\": [1]}", "a number or a text");
    refuse_text("{\"sms\" 1}", "':' should");
    refuse_text("{\"na\\u006de\": 1}", "no backslash");
    refuse_text("{\"name\": \"m\"}", "\"about\" is missing");
    refuse_text("{\"name\": \"m\", \"about\": \"a\"}", "is missing");
}

int main(void)
{
    test_machines();
    return 0;
}
