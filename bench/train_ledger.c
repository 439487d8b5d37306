/* train_ledger: the ledger as people and programs read it: see train_print.h.
 */
#include <inttypes.h>

#include "verbs/plural.h"

#include "bench/train_print.h"

/* ---- one step, as JSON ---- */

/* Training uses these; they are told even where they are 0, so that keys do not come and go. */
static bool is_told(enum collective collective, const uint64_t *a, const uint64_t *b)
{
    return collective == COLLECTIVE_ALL_REDUCE || collective == COLLECTIVE_REDUCE_SCATTER ||
           collective == COLLECTIVE_ALL_GATHER || collective == COLLECTIVE_BROADCAST ||
           a[collective] > 0 || b[collective] > 0;
}

static void print_traffic(
    FILE *json, const char *name, const uint64_t *bytes, const struct ledger_step *step)
{
    const char *separator = "";
    fprintf(json, ",\"%s\":{", name);
    for (int c = 0; c < COLLECTIVE_COUNT; c++) {
        if (!is_told((enum collective)c, step->sent, step->received)) continue;
        fprintf(
            json, "%s\"%s\":%" PRIu64, separator, collective_name((enum collective)c), bytes[c]);
        separator = ",";
    }
    fputc('}', json);
}

void train_print_step_ledger(FILE *json, const struct ledger_step *step)
{
    fputs(",\"held\":{", json);
    for (int tag = 0; tag < MEMORY_TAG_COUNT; tag++)
        fprintf(json, "%s\"%s\":{\"now\":%" PRIu64 ",\"peak\":%" PRIu64 "}", tag > 0 ? "," : "",
            memory_tag_name((enum memory_tag)tag), step->now[tag], step->peak[tag]);
    fputc('}', json);
    print_traffic(json, "sent", step->sent, step);
    print_traffic(json, "received", step->received, step);
    print_traffic(json, "predicted_sent", step->predicted_sent, step);
    fprintf(json, ",\"tensor_sums\":{\"sent\":%" PRIu64 ",\"predicted\":%" PRIu64 "}",
        step->tensor_sums, step->predicted_tensor_sums);
}

/* ---- the end ---- */

static void print_json(FILE *json, const struct ledger *ledger)
{
    fputs("{\"ledger\":{", json);
    for (int i = 0; i < ledger->count; i++) {
        const struct ledger_entry *entry = &ledger->entry[i];
        fprintf(json, "%s\"%s\":{\"measured\":%" PRIu64, i == 0 ? "" : ",", entry->name,
            entry->measured);
        if (entry->has_prediction) fprintf(json, ",\"predicted\":%" PRIu64 "}", entry->predicted);
        else fputs(",\"predicted\":null}", json);
    }
    fprintf(json,
        "},\"steps\":%" PRIu64 ",\"elements\":%" PRIu64
        ",\"paper_bytes\":%.0f,\"formula_bytes\":%.0f,\"tensor_paper_bytes\":%.0f,"
        "\"checkpoint_paper_bytes\":%.0f,\"ranks\":%d,\"differing_ranks\":%d,\"ok\":%s}\n",
        ledger->steps, ledger->elements, ledger->volume.paper_bytes, ledger->volume.done_bytes,
        ledger->tensor_paper_bytes, ledger->checkpoint_paper_bytes, ledger->nranks,
        ledger->differing_ranks, ledger->differing_ranks == 0 ? "true" : "false");
}

/* The paper counts a step of one micro-batch; what was done may be more: accumulation, validations. */
static void print_volume(const struct ledger *ledger)
{
    const struct ledger_volume *volume = &ledger->volume;
    printf("#   %" PRIu64 " step%s, Ψ = %" PRIu64 ", N = %d, by formula:\n", ledger->steps,
        PLURAL(ledger->steps), ledger->elements, ledger->data_count);
    printf(
        "#   the paper's %.0fΨ(N-1)/N  %15s  %15.0f\n", volume->paper_psi, "", volume->paper_bytes);
    if (volume->done_psi != volume->paper_psi)
        printf("#   as done, %.4gΨ(N-1)/N %15s  %15.0f   micro-batches and validations counted\n",
            volume->done_psi, "", volume->done_bytes);
    if (ledger->tensor_paper_bytes > 0.0)
        printf("#   tensor sums of blocks, by formula %4s  %15.0f   without embedding and head\n",
            "", ledger->tensor_paper_bytes);
    if (ledger->checkpoint_paper_bytes > 0.0)
        printf(
            "#   checkpoints, b·s·h(M-1)/M a block %4s  %15.0f   a part each (P_a), put together\n",
            "", ledger->checkpoint_paper_bytes);
}

static void print_verdict(const struct ledger *ledger)
{
    const struct ledger_entry *first = &ledger->first;
    if (ledger->differing_ranks == 0) {
        printf("# measured and predicted: OK on %s\n",
            ledger->nranks == 1 ? "the one rank" : "all ranks");
        return;
    }
    printf("# measured and predicted: DIFFERS on %d of %d rank%s; rank %d, %s: %" PRIu64
           " measured, %" PRIu64 " predicted\n",
        ledger->differing_ranks, ledger->nranks, PLURAL(ledger->nranks), ledger->first_rank,
        first->name, first->measured, first->predicted);
}

void train_print_ledger(const struct ledger *ledger, FILE *json)
{
    if (json != NULL) print_json(json, ledger);
    printf("# ledger of rank 0, bytes         measured        predicted\n");
    for (int i = 0; i < ledger->count; i++) {
        const struct ledger_entry *entry = &ledger->entry[i];
        printf("#   %-22s %15" PRIu64, entry->name, entry->measured);
        if (entry->has_prediction)
            printf("  %15" PRIu64 "%s\n", entry->predicted,
                entry->measured == entry->predicted ? "" : "  differs");
        else printf("  %15s\n", "-");
    }
    print_volume(ledger);
    print_verdict(ledger);
}
