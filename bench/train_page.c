/* train_page: a run as one HTML file that needs nothing from elsewhere: what it was, curves drawn as SVG, and the ledger.
 *
 *   curve     y │╲__             points of the history, as one polyline; gaps where a value is not
 *               │   ╲___         finite; more of a point in its tooltip
 *               └──────── step
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "bench/train_history.h"
#include "verbs/plural.h"

/* ---- text ---- */

static void put_text(FILE *page, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '&': fputs("&amp;", page); break;
        case '<': fputs("&lt;", page); break;
        case '>': fputs("&gt;", page); break;
        case '"': fputs("&quot;", page); break;
        default: fputc(*text, page);
        }
    }
}

static void put_head(FILE *page, const char *title)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width\">\n<title>", page);
    put_text(page, title);
    fputs("</title>\n<style>\n"
          ":root { --ink: #1b1b1b; --paper: #fff; --faint: #d8d8d8; --dim: #666; --a: #1f5fbf; --b: #c2481f }\n"
          "@media (prefers-color-scheme: dark) { :root { --ink: #e4e4e4; --paper: #17181a; --faint: #3a3c40;"
          " --dim: #9a9a9a; --a: #7fb0ff; --b: #ff9a6b } }\n"
          "body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);"
          " max-width: 60em; margin: 2em auto; padding: 0 1em }\n"
          "h1 { font-size: 1.4em } h2 { font-size: 1.05em; margin: 1.6em 0 .3em }\n"
          "svg { width: 100%; height: auto; display: block }\n"
          "svg text { font: 12px system-ui, sans-serif; fill: var(--dim) }\n"
          "svg .grid { stroke: var(--faint); stroke-width: 1 }\n"
          "svg .a, svg .b { fill: none; stroke-width: 1.6; stroke-linejoin: round }\n"
          "svg .a { stroke: var(--a) } svg .b { stroke: var(--b) } svg circle { fill: var(--b) }\n"
          "table { border-collapse: collapse; font-variant-numeric: tabular-nums }\n"
          "td, th { padding: .15em .9em .15em 0; text-align: left; vertical-align: top }\n"
          "td.n, th.n { text-align: right } th { font-weight: 600; border-bottom: 1px solid var(--faint) }\n"
          ".bar { display: inline-block; height: .7em; background: var(--a) }\n"
          ".bad { color: var(--b); font-weight: 600 } .dim { color: var(--dim) }\n"
          "</style></head><body>\n", page);
}

static void put_row(FILE *page, const char *name, const char *value)
{
    fputs("<tr><td class=\"dim\">", page);
    put_text(page, name);
    fputs("</td><td>", page);
    put_text(page, value);
    fputs("</td></tr>\n", page);
}

/* ---- what it was ---- */

static void put_facts(FILE *page, const struct train_history *history)
{
    const struct train_options *options = history->options;
    const struct train_config *config = &options->config;
    const struct train_start *start = &history->start;
    const struct history_point *first = &history->point[0], *last = &history->point[history->points - 1];
    char text[512];
    fputs("<table>\n", page);
    snprintf(text, sizeof text, "%s: %.2f million parameters, %d layer%s, %d head%s, %d channels, vocabulary %d",
        options->run.model, (double)history->elements * 1e-6, history->model.layers,
        PLURAL(history->model.layers), history->model.heads, PLURAL(history->model.heads),
        history->model.channels, history->model.vocab);
    put_row(page, "model", text);
    snprintf(text, sizeof text, "%s: %" PRIu64 " tokens to train on, %" PRIu64 " held out", config->data,
        start->train_tokens, start->validation_tokens);
    put_row(page, "data", text);
    snprintf(text, sizeof text, "%d by %s on %s, %d sharing every tensor, %d stage%s of a pipeline, "
        "ZeRO stage %d, shard groups of %d",
        start->nranks, start->transport, options->common.device, start->grid.tensor_count,
        start->grid.pipeline_count, PLURAL(start->grid.pipeline_count),
        config->stage, start->shard_group);
    put_row(page, "ranks", text);
    snprintf(text, sizeof text, "weights %s, gradients %s", dtype_name(config->dtype), dtype_name(config->gradient_dtype));
    put_row(page, "dtype", text);
    snprintf(text, sizeof text, "%" PRIu64 " to %" PRIu64 " of %" PRIu64 ", %" PRIu64 " token%s each", first->first,
        last->last, config->steps, start->tokens_per_step, PLURAL(start->tokens_per_step));
    put_row(page, "steps", text);
    snprintf(text, sizeof text, "%.4f nats per token, from %.4f", last->loss, first->loss);
    put_row(page, "loss", text);
    if (history->validations > 0) {
        const struct history_validation *validation = &history->validation[history->validations - 1];
        snprintf(text, sizeof text, "%.4f nats per token after step %" PRIu64, validation->loss, validation->step);
        put_row(page, "validation", text);
    }
    fputs("</table>\n", page);
}

/* ---- curves ---- */

enum { WIDTH = 860, HEIGHT = 230, LEFT = 62, RIGHT = 12, TOP = 8, BOTTOM = 26, X_TICKS = 10, Y_TICKS = 5 };

struct frame {
    double x_least, x_most, y_least, y_most;
};

typedef double (*value_of)(const struct history_point *point);

static double x_at(double x, const struct frame *frame)
{
    return LEFT + (x - frame->x_least) / (frame->x_most - frame->x_least) * (WIDTH - LEFT - RIGHT);
}

static double y_at(double y, const struct frame *frame)
{
    return TOP + (frame->y_most - y) / (frame->y_most - frame->y_least) * (HEIGHT - TOP - BOTTOM);
}

static void take_in(struct frame *frame, double y)
{
    if (!isfinite(y)) return;
    if (y < frame->y_least) frame->y_least = y;
    if (y > frame->y_most) frame->y_most = y;
}

/* 1, 2 or 5 times a power of ten. */
static double tick_step(double range, int ticks)
{
    double power = pow(10.0, floor(log10(range / ticks))), times = range / ticks / power;
    return power * (times <= 1.0 ? 1.0 : times <= 2.0 ? 2.0 : times <= 5.0 ? 5.0 : 10.0);
}

static struct frame frame_of(const struct train_history *history, value_of value, bool from_zero, bool validations)
{
    struct frame frame = {(double)history->point[0].first, (double)history->point[history->points - 1].last, INFINITY,
        -INFINITY};
    for (int i = 0; i < history->points; i++) take_in(&frame, value(&history->point[i]));
    for (int i = 0; i < history->validations && validations; i++) take_in(&frame, history->validation[i].loss);
    if (from_zero || !(frame.y_least <= frame.y_most)) take_in(&frame, 0.0);
    if (frame.y_most <= frame.y_least) frame.y_most = frame.y_least + 1.0;
    if (frame.x_most <= frame.x_least) frame.x_most = frame.x_least + 1.0;
    double step = tick_step(frame.y_most - frame.y_least, Y_TICKS);
    frame.y_least = floor(frame.y_least / step) * step;
    frame.y_most = ceil(frame.y_most / step) * step;
    return frame;
}

static void put_axes(FILE *page, const struct frame *frame)
{
    double y_step = tick_step(frame->y_most - frame->y_least, Y_TICKS);
    double x_step = tick_step(frame->x_most - frame->x_least, X_TICKS);
    if (x_step < 1.0) x_step = 1.0;
    for (double y = frame->y_least; y <= frame->y_most + y_step / 2; y += y_step) {
        double at = y_at(y, frame);
        fprintf(page, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT, WIDTH - RIGHT, at, at);
        fprintf(page, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>\n", LEFT - 6, at + 4,
            fabs(y) < y_step / 1e6 ? 0.0 : y);
    }
    for (double x = ceil(frame->x_least / x_step) * x_step; x <= frame->x_most; x += x_step)
        fprintf(page, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f</text>\n", x_at(x, frame), HEIGHT - 8, x);
}

static double middle_of(const struct history_point *point)
{
    return 0.5 * (double)(point->first + point->last);
}

static void put_polyline(FILE *page, const struct train_history *history, value_of value, const struct frame *frame)
{
    bool open = false;
    for (int i = 0; i < history->points; i++) {
        double y = value(&history->point[i]);
        if (isfinite(y)) {
            fprintf(page, "%s%.1f,%.1f", open ? " " : "<polyline class=\"a\" points=\"", x_at(middle_of(&history->point[i]), frame),
                y_at(y, frame));
        } else if (open) {
            fputs("\"/>\n", page);
        }
        open = isfinite(y);
    }
    if (open) fputs("\"/>\n", page);
}

static void put_validations(FILE *page, const struct train_history *history, const struct frame *frame)
{
    for (int i = 0; i < history->validations; i++) {
        const struct history_validation *validation = &history->validation[i];
        if (!isfinite(validation->loss)) continue;
        fprintf(page, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>validation after step %" PRIu64 ": %.4f</title></circle>\n",
            x_at((double)validation->step, frame), y_at(validation->loss, frame), validation->step, validation->loss);
    }
}

static void put_curve(FILE *page, const struct train_history *history, const char *title, value_of value, bool from_zero,
    bool validations)
{
    struct frame frame = frame_of(history, value, from_zero, validations);
    fputs("<h2>", page);
    put_text(page, title);
    fprintf(page, "</h2>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH, HEIGHT);
    put_text(page, title);
    fputs(", by step\">\n", page);
    put_axes(page, &frame);
    put_polyline(page, history, value, &frame);
    if (validations) put_validations(page, history, &frame);
    fputs("</svg>\n", page);
}

static double loss_of(const struct history_point *point) { return point->loss; }
static double norm_of(const struct history_point *point) { return point->norm; }
static double rate_of(const struct history_point *point) { return point->lr; }
static double speed_of(const struct history_point *point) { return point->tokens_per_s; }
static double waits_of(const struct history_point *point) { return 100.0 * point->wait_ms / point->step_ms; }

static void put_curves(FILE *page, const struct train_history *history)
{
    put_curve(page, history,
        history->validations > 0 ? "Loss, nats per token (dots: validation)" : "Loss, nats per token", loss_of, false, true);
    put_curve(page, history, "Norm of the gradient, before clipping", norm_of, true, false);
    put_curve(page, history, "Tokens per second, of all ranks", speed_of, true, false);
    put_curve(page, history, "Share of a step that rank 0 waited for the ring, %", waits_of, true, false);
    put_curve(page, history, "Learning rate", rate_of, true, false);
    if (history->per_point > 1)
        fprintf(page, "<p class=\"dim\">A point is the mean of %" PRIu64 " steps.</p>\n", history->per_point);
    uint64_t skipped = 0;
    for (int i = 0; i < history->points; i++) skipped += history->point[i].skipped;
    if (skipped > 0)
        fprintf(page, "<p>%" PRIu64 " step%s skipped: the gradient overflowed.</p>\n", skipped,
            skipped == 1 ? " was" : "s were");
}

/* ---- the ledger ---- */

static bool ends_in(const char *text, const char *ending)
{
    size_t length = strlen(text), end = strlen(ending);
    return length >= end && strcmp(text + length - end, ending) == 0;
}

static void put_entries(FILE *page, const struct ledger *ledger, const char *ending, const char *title)
{
    uint64_t most = 1;
    for (int i = 0; i < ledger->count; i++)
        if (ends_in(ledger->entry[i].name, ending) && ledger->entry[i].measured > most) most = ledger->entry[i].measured;
    fprintf(page, "<tr><th>%s</th><th class=\"n\">measured</th><th class=\"n\">predicted</th><th></th></tr>\n", title);
    for (int i = 0; i < ledger->count; i++) {
        const struct ledger_entry *entry = &ledger->entry[i];
        if (!ends_in(entry->name, ending)) continue;
        bool differs = entry->has_prediction && entry->measured != entry->predicted;
        fprintf(page, "<tr><td>%.*s</td><td class=\"n\">%" PRIu64 "</td>", (int)(strlen(entry->name) - strlen(ending)),
            entry->name, entry->measured);
        if (entry->has_prediction)
            fprintf(page, "<td class=\"n%s\">%" PRIu64 "</td>", differs ? " bad" : "", entry->predicted);
        else fputs("<td class=\"n dim\">none</td>", page);
        fprintf(page, "<td><span class=\"bar\" style=\"width:%.1fem\"></span></td></tr>\n",
            14.0 * (double)entry->measured / (double)most);
    }
}

static void put_ledger(FILE *page, const struct train_history *history)
{
    const struct ledger *ledger = &history->ledger;
    fputs("<h2>Ledger of rank 0, bytes</h2>\n", page);
    if (!history->has_ledger) {
        fputs("<p class=\"bad\">The run did not come to its end, so there is none.</p>\n", page);
        return;
    }
    fputs("<table>\n", page);
    put_entries(page, ledger, "_held", "held, at most");
    put_entries(page, ledger, "_sent", "sent, in all");
    fputs("</table>\n", page);
    if (ledger->differing_ranks == 0)
        fprintf(page, "<p>Measured equals predicted on %s%d rank%s.</p>\n",
            ledger->nranks > 1 ? "all " : "", ledger->nranks, PLURAL(ledger->nranks));
    else
        fprintf(page, "<p class=\"bad\">Measured differs from predicted on %d of %d rank%s: rank %d, %s.</p>\n",
            ledger->differing_ranks, ledger->nranks, PLURAL(ledger->nranks), ledger->first_rank, ledger->first.name);
}

void history_write_page(FILE *page, const struct train_history *history)
{
    char title[128];
    snprintf(title, sizeof title, "ringzero train: %s on %d rank%s", history->options->run.model, history->start.nranks,
        PLURAL(history->start.nranks));
    put_head(page, title);
    fputs("<h1>", page);
    put_text(page, title);
    fputs("</h1>\n", page);
    put_facts(page, history);
    put_curves(page, history);
    put_ledger(page, history);
    fputs("</body></html>\n", page);
}
