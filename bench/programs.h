/* programs: the entry points behind `ringzero PROGRAM`, one file each. argv[0] is the program's
 * name. They return the exit code: 0, 1 when an operation failed, 2 for bad input (after one line).
 */
#ifndef BENCH_PROGRAMS_H
#define BENCH_PROGRAMS_H

int bench_main(int argc, char **argv);
int convert_main(int argc, char **argv);
int evaluate_main(int argc, char **argv);
int link_main(int argc, char **argv);
int plan_main(int argc, char **argv);
int sample_main(int argc, char **argv);
int show_main(int argc, char **argv);
int tokenize_main(int argc, char **argv);
int topo_main(int argc, char **argv);
int train_main(int argc, char **argv);

#endif
