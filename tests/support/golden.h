/* Texts that must not change by accident, kept in tests/golden. */
#ifndef TIDE_TESTS_GOLDEN_H
#define TIDE_TESTS_GOLDEN_H

#include <stdio.h>

/*
 * Compares what write() writes with tests/golden/<name>; the test fails at the
 * first line that differs. TIDE_UPDATE_GOLDEN=1 in the environment writes the
 * file instead. Tests run in the source folder.
 */
void check_golden(const char *name,
                  void (*write)(FILE *to, const void *context),
                  const void *context);

#endif
