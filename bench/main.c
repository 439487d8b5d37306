/* main: `ringzero PROGRAM [OPTION…]` hands over to one of the programs.
 */
#include <stdio.h>
#include <string.h>

#include "bench/programs.h"
#include "model/blas.h"

static const struct program {
    const char *name;
    int (*main)(int argc, char **argv);
    const char *purpose;
} programs[] = {
    {"bench", bench_main, "bandwidth and latency of a collective, as nccl-tests prints them"},
    {"train", train_main, "a GPT-2 or a Llama on text or token shards, on many ranks"},
    {"tokenize", tokenize_main, "text into token shards, by GPT-2's byte-pair encoding, and back"},
    {"sample", sample_main, "text from a model, token by token"},
    {"convert", convert_main, "a model's weights: checkpoint, safetensors or llm.c's file, into another"},
    {"evaluate", evaluate_main, "a model's loss on held-out tokens, and its choices among endings"},
    {"show", show_main, "the step table of a collective, drawn, or run in virtual time"},
    {"plan", plan_main, "bytes that a run will hold and send, per rank, and the largest model that fits"},
    {"topo", topo_main, "what a machine looks like, and the rings and NICs chosen from that"},
    {"link", link_main, "bandwidth, latency and message rate of one edge between two ranks"},
};
#define PROGRAM_COUNT (sizeof programs / sizeof *programs)

static void print_help(void)
{
    printf("ringzero: ring collectives written from scratch, and ZeRO built on them.\n\n"
           "Usage: ringzero PROGRAM [OPTION...]\n\n");
    for (size_t i = 0; i < PROGRAM_COUNT; i++)
        printf("  %-8s %s\n", programs[i].name, programs[i].purpose);
    printf("\n`ringzero PROGRAM --help` is the manual of each. `ringzero --version` prints the "
           "version.\n\n"
           "Example:\n"
           "  ringzero bench all_reduce --ranks 4 -b 8 -e 128M -f 2\n");
}

int main(int argc, char **argv)
{
    blas_use_better_core(argv); /* may start the program again */
    if (argc < 2) {
        fprintf(stderr,
            "ringzero: no program given, expected one of those that `ringzero --help` lists\n");
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help();
        return fflush(stdout) == 0 ? 0 : 1;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        printf("ringzero %s\n", RINGZERO_VERSION);
        return fflush(stdout) == 0 ? 0 : 1;
    }
    for (size_t i = 0; i < PROGRAM_COUNT; i++)
        if (strcmp(argv[1], programs[i].name) == 0) return programs[i].main(argc - 1, argv + 1);
    fprintf(stderr, "ringzero: program \"%s\" is unknown, expected one of", argv[1]);
    for (size_t i = 0; i < PROGRAM_COUNT; i++)
        fprintf(stderr, "%s %s", i == 0 ? "" : ",", programs[i].name);
    fprintf(stderr, ": see `ringzero --help`\n");
    return 2;
}
