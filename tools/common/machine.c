/* Reads what the kernel says about this machine. */
#include "common/machine.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static void read_cpu(char *cpu, size_t room)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(cpu, room, "unknown");
    while (file && fgets(line, sizeof(line), file)) {
        char *colon = strchr(line, ':');
        if (colon && !strncmp(line, "model name", 10)) {
            colon[strcspn(colon, "\n")] = 0;
            snprintf(cpu, room, "%s", colon + 2);
            break;
        }
    }
    if (file)
        fclose(file);
}

void tdi_machine_read(tdi_machine *machine)
{
    struct utsname name;
    cpu_set_t set;
    *machine = (tdi_machine){.kernel = "unknown"};
    read_cpu(machine->cpu, sizeof(machine->cpu));
    if (!uname(&name))
        snprintf(machine->kernel, sizeof(machine->kernel), "%.40s %.80s",
                 name.sysname, name.release);
    if (!sched_getaffinity(0, sizeof(set), &set))
        machine->cores = (uint64_t)CPU_COUNT(&set);
    machine->memory_bytes =
        (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}
