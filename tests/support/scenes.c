/* Plays scenes side by side. */
#include "scenes.h"

#include "base/util.h"
#include "calls.h"
#include "check.h"
#include "device.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIDE_BY_SIDE = 6, LONGEST_S = 120 };

static int run_scene(const scene *s)
{
    for (size_t i = 0; i < TDI_COUNT(s->settings) && s->settings[i]; i += 2)
        setenv(s->settings[i], s->settings[i + 1], 1);
    alarm(LONGEST_S);
    if (s->must_fail && !freopen("/dev/null", "w", stderr))
        return 0;
    call_place = &device_place;
    int code = tide_launch_threads(s->ranks, s->body, s->context, NULL);
    if (!code && s->after)
        s->after(s->context);
    return code;
}

typedef struct playing {
    pid_t pid;
    const scene *scene;
} playing;

static uint32_t failures;

/* Waits for any of them; its place is free then. */
static playing *reap(playing *all)
{
    int state;
    pid_t pid;
    while ((pid = wait(&state)) < 0 && errno == EINTR)
        continue;
    for (size_t i = 0; i < SIDE_BY_SIDE; i++) {
        if (all[i].pid != pid || pid <= 0)
            continue;
        all[i].pid = 0;
        if (!state == !all[i].scene->must_fail)
            return &all[i];
        failures++;
        fprintf(stderr, "scene \"%s\" ended with %s %d\n", all[i].scene->name,
                WIFEXITED(state) ? "exit code" : "signal",
                WIFEXITED(state) ? WEXITSTATUS(state) : WTERMSIG(state));
        return &all[i];
    }
    CHECK_FAIL("no scene has ended");
}

static playing *find_place(playing *all)
{
    for (size_t i = 0; i < SIDE_BY_SIDE; i++)
        if (!all[i].pid)
            return &all[i];
    return reap(all);
}

void scenes_play(const scene *scenes, size_t count)
{
    playing all[SIDE_BY_SIDE] = {{0}};
    const char *only = getenv("SCENE");
    for (size_t i = 0; i < count; i++) {
        if (only && strcmp(only, scenes[i].name))
            continue;
        playing *place = find_place(all);
        fflush(NULL);
        pid_t pid = fork();
        CHECK_INT(pid, >=, 0);
        if (!pid)
            _exit(run_scene(&scenes[i]));
        *place = (playing){pid, &scenes[i]};
    }
    for (size_t i = 0; i < SIDE_BY_SIDE; i++)
        while (all[i].pid)
            reap(all);
    CHECK_INT(failures, ==, 0);
}
