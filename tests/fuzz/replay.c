/* replay: runs a fuzz target on stored inputs, without a fuzzer: every file that is named, every file of a folder that is named. */
#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>

#include "tests/fuzz/fuzz.h"

static int run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct stat status;
    if (file == NULL || fstat(fileno(file), &status) != 0) {
        fprintf(stderr, "replay: cannot read %s\n", path);
        exit(1);
    }
    /* Exactly so many bytes, that a sanitizer sees a read behind them. */
    size_t bytes = (size_t)status.st_size;
    uint8_t *data = malloc(bytes > 0 ? bytes : 1);
    if (data == NULL || fread(data, 1, bytes, file) != bytes) exit(1);
    fclose(file);
    LLVMFuzzerTestOneInput(data, bytes);
    free(data);
    return 1;
}

static int run_path(const char *path)
{
    DIR *folder = opendir(path);
    if (folder == NULL) return run_file(path);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char name[4096];
        if (entry->d_name[0] == '.') continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        count += run_file(name);
    }
    closedir(folder);
    return count;
}

int main(int argc, char **argv)
{
    int count = 0;
    for (int i = 1; i < argc; i++) count += run_path(argv[i]);
    printf("%d inputs\n", count);
    return count > 0 ? 0 : 1; /* a replay of nothing shows nothing */
}
