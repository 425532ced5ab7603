/*
 * Status codes and the text of the last error.
 *
 * Every function that can fail returns a tide_status: TIDE_OK (0) or one of
 * the negative codes below. The message is written once, by the code that met
 * the fault, and says which rank, peer, operation and size it concerns.
 */
#ifndef TIDE_STATUS_H
#define TIDE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#define TIDE_API __attribute__((visibility("default")))

/* name, value, text */
#define TIDE_STATUS_LIST(X)                                                    \
    X(OK, 0, "success")                                                        \
    X(ERR_INVALID, -1, "invalid argument; nothing was changed")                \
    X(ERR_MEMORY, -2, "out of memory or of arena space")                       \
    X(ERR_UNSUPPORTED, -3, "not supported here; the message says why")         \
    X(ERR_SYSTEM, -4, "a system call failed")                                  \
    X(ERR_PEER, -5, "a peer is dead or did not arrive before the deadline")    \
    X(ERR_MISMATCH, -6, "ranks disagree about the call, group or version")     \
    X(ERR_ABORTED, -7, "the communicator was aborted")                         \
    X(ERR_PLAN, -8, "a plan failed a check")

typedef enum tide_status {
#define X(name, value, text) TIDE_##name = value,
    TIDE_STATUS_LIST(X)
#undef X
} tide_status;

/* The name of a status, "TIDE_ERR_PEER" say; never NULL. */
TIDE_API const char *tide_status_name(tide_status status);

/* One sentence about a status; never NULL. */
TIDE_API const char *tide_status_text(tide_status status);

/*
 * The message of the last error this thread met in tide, or "" if none. The
 * text belongs to tide and is valid until this thread's next failing call.
 */
TIDE_API const char *tide_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
