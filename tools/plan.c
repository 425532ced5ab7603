/* tide-plan: makes plans, and checks, prints, draws and times them. */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <tide/tide.h>

#include "base/fail.h"
#include "common/origin.h"
#include "plan/args.h"
#include "plan/check.h"
#include "plan/page.h"
#include "plan/paper.h"
#include "plan/predict.h"
#include "plan/step.h"
#include "plan/trace.h"

enum { EXIT_FAULT = 1, EXIT_USAGE = 2 };

typedef struct session {
    const tdi_plan_args *args;
    tide_machine machine;
    const tide_machine *on; /* NULL: no machine is named */
    FILE *to;               /* NULL: standard output is for JSON */
    tdi_case c;             /* the one case, where there is one */
    tide_plan *plan;        /* of args->rank */
    tdi_predictions rows;
    const char *verdict; /* NULL: not asked for */
} session;

static int say_error(tide_status status)
{
    fprintf(stderr, "tide-plan: %s\n", tide_last_error());
    return status == TIDE_ERR_INVALID ? EXIT_USAGE : EXIT_FAULT;
}

static tide_status open_machine(session *s)
{
    const char *name = s->args->sim;
    if (!name && (s->args->paper || s->args->trace || s->args->html))
        name = tide_machine_name(0);
    if (!name)
        return TIDE_OK;
    TDI_TRY(tide_machine_load(name, &s->machine));
    s->on = &s->machine;
    return tdi_variants_check(s->args->variant, s->args->options.coll);
}

static bool wants_case(const tdi_plan_args *args)
{
    bool other = args->paper || args->step || args->sim;
    return args->verify || args->text || args->stats || args->trace ||
           args->html || !other;
}

static tide_status open_case(session *s)
{
    const tdi_plan_args *args = s->args;
    TDI_TRY(
        tdi_case_create(args, s->on, args->nodes[0], args->sizes[0], &s->c));
    return tide_plan_create(s->c.layout, s->c.topology, args->rank,
                            &s->c.options, &s->plan);
}

static void close_session(session *s)
{
    tide_plan_free(s->plan);
    tdi_case_free(&s->c);
    tdi_predictions_free(&s->rows);
}

/* A fault in the plans is a result, not an error of the command. */
static int verify(session *s)
{
    tide_status status = tdi_case_verify(&s->c);
    if (status == TIDE_ERR_MEMORY || status == TIDE_ERR_INVALID)
        return say_error(status);
    s->verdict = status ? tide_last_error() : "verified";
    if (s->to)
        fprintf(s->to, "%s\n", s->verdict);
    return status ? EXIT_FAULT : 0;
}

static int show_case(session *s)
{
    const tdi_plan_args *args = s->args;
    int code = 0;
    if (s->to && args->text)
        tide_plan_print(s->plan, s->to);
    /* Without a wish, statistics say most in a few lines. */
    if (s->to && (args->stats || (!args->text && !args->verify &&
                                  !args->trace && !args->html)))
        tdi_stats_print(s->to, s->plan);
    if (args->verify)
        code = verify(s);
    return code;
}

/* The paper's rows and steps are computed as they are written. */
static tide_status write_models(const session *s, FILE *to, tdi_json *json)
{
    const tdi_plan_args *args = s->args;
    if (args->paper)
        TDI_TRY(tdi_paper_predict(s->on, to, json));
    if (args->step)
        TDI_TRY(tdi_step_predict(args->step, s->on, args->nodes[0], to, json));
    return TIDE_OK;
}

static int show_predictions(session *s)
{
    const tdi_plan_args *args = s->args;
    tide_status status = TIDE_OK;
    if (args->sim && !args->paper && !args->step)
        status = tdi_predict_all(args, s->on, s->to, &s->rows);
    if (!status && s->to)
        status = write_models(s, s->to, NULL);
    return status ? say_error(status) : 0;
}

/* Nobody should find half a file: what cannot be written whole is a fault. */
static int close_file(FILE *to, const char *path, tide_status status)
{
    int failed = ferror(to);
    failed |= fclose(to);
    if (failed)
        fprintf(stderr, "tide-plan: %s cannot be written: %s\n", path,
                strerror(errno));
    return status ? say_error(status) : failed ? EXIT_FAULT : 0;
}

static FILE *open_file(const char *path)
{
    FILE *to = fopen(path, "w");
    if (!to)
        fprintf(stderr, "tide-plan: %s cannot be written: %s\n", path,
                strerror(errno));
    return to;
}

static int write_trace(const session *s, tdi_run_log *log)
{
    FILE *to = open_file(s->args->trace);
    return to ? close_file(to, s->args->trace, tdi_trace_write(log, to))
              : EXIT_FAULT;
}

static int write_page(const session *s, tdi_run_log *log)
{
    const char *group = s->args->group ? s->args->group : "like a Llama block";
    FILE *to = open_file(s->args->html);
    return to ? close_file(to, s->args->html,
                           tdi_page_write(&s->c, s->on, group, log, to))
              : EXIT_FAULT;
}

static int draw_case(const session *s)
{
    tdi_run_log log;
    int code = 0;
    if (!s->args->trace && !s->args->html)
        return 0;
    tide_status status = tdi_run_log_create(&s->c, s->on, &log);
    if (status)
        return say_error(status);
    if (s->args->trace)
        code = write_trace(s, &log);
    if (!code && s->args->html)
        code = write_page(s, &log);
    tdi_run_log_free(&log);
    return code;
}

static tide_status write_json(const session *s, FILE *to, int argc, char **argv)
{
    tdi_json json = {.to = to};
    tide_status status;
    tdi_json_open(&json, NULL, '{');
    tdi_origin_json(&json, "tide-plan", argc, argv);
    if (s->on) {
        tdi_json_open(&json, "machine", '{');
        tdi_json_text(&json, "name", s->on->name);
        tdi_json_text(&json, "about", s->on->about);
        tdi_json_close(&json, '}');
    }
    if (s->verdict)
        tdi_json_text(&json, "verdict", s->verdict);
    if (s->plan)
        tdi_stats_json(&json, s->plan);
    if (s->rows.count) {
        tdi_json_text(&json, "assumption",
                      tdi_predictions_assume(s->rows.mirrored));
        tdi_table_json(&json, s->rows.rows, s->rows.count);
    }
    status = write_models(s, NULL, &json);
    tdi_json_close(&json, '}');
    return status;
}

static int save_json(const session *s, int argc, char **argv)
{
    const char *path = s->args->json_path;
    if (!path) {
        tide_status status = write_json(s, stdout, argc, argv);
        return status ? say_error(status) : 0;
    }
    FILE *to = open_file(path);
    return to ? close_file(to, path, write_json(s, to, argc, argv))
              : EXIT_FAULT;
}

/* A faulty plan is still shown, drawn and timed as far as that goes. */
static int show_all(session *s, int argc, char **argv)
{
    int code = s->plan ? show_case(s) : 0;
    if (code && !s->verdict)
        return code;
    int more = s->plan ? draw_case(s) : 0;
    if (!more)
        more = show_predictions(s);
    if (!more && (s->args->json || s->args->json_path))
        more = save_json(s, argc, argv);
    return code ? code : more;
}

static int run(session *s, int argc, char **argv)
{
    tide_status status = open_machine(s);
    if (!status && wants_case(s->args))
        status = open_case(s);
    if (status)
        return say_error(status);
    return show_all(s, argc, argv);
}

int main(int argc, char **argv)
{
    tdi_plan_args args;
    tdi_action action = tdi_plan_parse(argc, argv, &args);
    if (action != TDI_RUN)
        return action == TDI_DONE ? 0 : EXIT_USAGE;
    session s = {.args = &args, .to = args.json ? NULL : stdout};
    int code = run(&s, argc, argv);
    close_session(&s);
    return code;
}
