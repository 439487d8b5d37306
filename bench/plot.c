/* plot: see plot.h. */
#include "bench/plot.h"

#include <errno.h>
#include <limits.h>
#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

/* "x.svg" → "x.dat". */
static void beside(char path[PATH_MAX], const struct plot *plot, const char *ending)
{
    const char *dot = strrchr(plot->file, '.'), *slash = strrchr(plot->file, '/');
    bool has_ending = dot != NULL && dot != plot->file && (slash == NULL || dot > slash + 1);
    int stem = (int)(has_ending ? dot - plot->file : (ptrdiff_t)strlen(plot->file));
    snprintf(path, PATH_MAX, "%.*s%s", stem, plot->file, ending);
}

FILE *plot_open(const struct plot *plot)
{
    char path[PATH_MAX];
    beside(path, plot, ".dat");
    FILE *data = fopen(path, "w");
    if (data == NULL)
        (void)FAIL(STATUS_SYSTEM, "--plot: %s cannot be written: %s; expected a folder that can", path,
            strerror(errno));
    return data;
}

/* Within gnuplot's single quotes a quote is written twice. */
static void put_quoted(FILE *script, const char *text)
{
    fputc('\'', script);
    for (; *text != '\0'; text++) {
        if (*text == '\'') fputc('\'', script);
        fputc(*text, script);
    }
    fputc('\'', script);
}

static void put_line(FILE *script, const char *command, const char *text)
{
    fprintf(script, "%s ", command);
    put_quoted(script, text);
    fputc('\n', script);
}

static void put_script(FILE *script, const struct plot *plot, const char *data)
{
    static const char *const styles[] = {
        [PLOT_LINE] = "linespoints lw 2 pt 7 ps 0.5",
        [PLOT_POINTS] = "points pt 6 ps 1",
        [PLOT_THIN] = "lines lw 1 lc '#888888'",
        [PLOT_RIGHT] = "lines lw 1 lc '#bbccdd'",
    };
    fprintf(script, "set terminal svg size 900,560 font 'sans,13' background 'white'\n");
    put_line(script, "set output", plot->file);
    put_line(script, "set title noenhanced", plot->title);
    put_line(script, "set xlabel", plot->x_label);
    put_line(script, "set ylabel", plot->y_label);
    fprintf(script,
        "set encoding utf8\nset grid lc '#dddddd'\nset key noenhanced outside bottom center horizontal\n"
        "set datafile missing '?'\n");
    if (!plot->x_linear) fprintf(script, "set logscale x 2\n");
    if (plot->x_bytes) fprintf(script, "set format x '%%.0b%%BB'\n");
    fprintf(script, plot->y_log ? "set logscale y 10\nset format y '%%.0s%%c'\n" : "set yrange [0:*]\n");
    if (plot->y2_label != NULL) {
        put_line(script, "set y2label", plot->y2_label);
        fprintf(script, "set y2range [0:*]\nset y2tics\nset ytics nomirror\n");
    }
    for (int i = 0; i < PLOT_SERIES && plot->series[i].title != NULL; i++) {
        fprintf(script, i == 0 ? "plot " : ", \\\n     ");
        put_quoted(script, data);
        fprintf(script, " using 1:%d axes x1%s with %s title ", plot->series[i].column,
            plot->series[i].style == PLOT_RIGHT ? "y2" : "y1", styles[plot->series[i].style]);
        put_quoted(script, plot->series[i].title);
    }
    fputc('\n', script);
}

static enum status write_script(const char *path, const struct plot *plot, const char *data)
{
    FILE *script = fopen(path, "w");
    if (script == NULL) return FAIL(STATUS_SYSTEM, "--plot: %s cannot be written: %s", path, strerror(errno));
    put_script(script, plot, data);
    bool failed = ferror(script) != 0;
    failed |= fclose(script) != 0;
    return failed ? FAIL(STATUS_SYSTEM, "--plot: writing %s failed: %s", path, strerror(errno)) : STATUS_OK;
}

enum status plot_close(FILE *data, const struct plot *plot)
{
    char data_path[PATH_MAX], script_path[PATH_MAX];
    beside(data_path, plot, ".dat");
    beside(script_path, plot, ".gp");
    bool failed = ferror(data) != 0;
    failed |= fclose(data) != 0;
    if (failed) return FAIL(STATUS_SYSTEM, "--plot: writing %s failed: %s", data_path, strerror(errno));
    TRY(write_script(script_path, plot, data_path));

    char *arguments[] = {(char *)(uintptr_t) "gnuplot", script_path, NULL};
    pid_t child;
    int error = posix_spawnp(&child, "gnuplot", NULL, NULL, arguments, environ);
    if (error != 0) {
        fprintf(stderr,
            "--plot: gnuplot was not started (%s), so %s is not drawn: the data are in %s; `gnuplot %s` "
            "draws them\n",
            strerror(error), plot->file, data_path, script_path);
        return STATUS_OK;
    }
    int how = 0;
    while (waitpid(child, &how, 0) < 0 && errno == EINTR) continue;
    if (WIFEXITED(how) && WEXITSTATUS(how) == 0) return STATUS_OK;
    return FAIL(STATUS_DATA, "--plot: gnuplot could not draw %s (its message is above); the data are in %s",
        plot->file, data_path);
}
