/*
 * Scenes on devices: each is a process of its own, with its own settings and
 * fakes, and its ranks are threads (device_open gives one its device). Several
 * run side by side, for most of them wait for deadlines.
 */
#ifndef TIDE_TESTS_SCENES_H
#define TIDE_TESTS_SCENES_H

#include <tide/comm.h>

typedef int scene_body(const tide_bootstrap *bootstrap, void *context);

typedef struct scene {
    const char *name;
    uint32_t ranks;
    scene_body *body;
    void *context;
    void (*after)(void *context); /* once all ranks are through; may be NULL */
    const char *settings[8];      /* environment: name, value, ... */
    int must_fail; /* a check in it must fail: the fakes are made wrong */
} scene;

/* Plays them all; the test fails and names the scene if one does not return 0
 * from every rank in time. `SCENE` in the environment picks one by name. */
void scenes_play(const scene *scenes, size_t count);

#endif
