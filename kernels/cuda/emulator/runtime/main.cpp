// Reads what to launch, launches it, and writes what was counted or what went wrong.
#include "runtime.h"
#include <csignal>
#include <initializer_list>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

static FILE* result;
static u64 values[128];
static void* pointers[128];

// What may yet turn out to have a better name, and how firm it is (0: nothing).
static char kept[640];
static int kept_rank;
static u64 kept_place;

// The first lane that got what no lane gave.
static char strayed[640];
u64 nobodys_value;

static void describe(char* out, size_t size, const char* format, va_list arguments) {
    int head = snprintf(out, size, "fault block=%u thread=%d address=%llu what=", block_number,
                        current, (unsigned long long)site_address(last_site));
    vsnprintf(out + head, size - head, format, arguments);
}

[[noreturn]] static void end_with(const char* description) {
    fprintf(result, "%s\n", description);
    fflush(result);
    _exit(3);
}

void fault(const char* format, ...) {
    // Garbage that was read leads to other faults; a barrier that was missed explains a race.
    if (*strayed) end_with(strayed);
    bool explains = !strncmp(format, "barrier", 7) || !strncmp(format, "collective", 10);
    if (kept_rank && !(explains && kept_rank != UNWRITTEN_ARGUMENT)) end_with(kept);
    char description[640];
    va_list arguments;
    va_start(arguments, format);
    describe(description, sizeof description, format, arguments);
    va_end(arguments);
    end_with(description);
}

void suspect(int rank, u64 place, const char* format, ...) {
    if (rank <= kept_rank) return;
    if (kept_rank == UNWRITTEN_ARGUMENT && !(rank == RACE && place == kept_place)) return;
    kept_rank = rank;
    kept_place = place;
    va_list arguments;
    va_start(arguments, format);
    describe(kept, sizeof kept, format, arguments);
    va_end(arguments);
}

void stray(const char* format, ...) {
    if (*strayed) return;
    va_list arguments;
    va_start(arguments, format);
    describe(strayed, sizeof strayed, format, arguments);
    va_end(arguments);
}

void judge_suspect(bool grid_ended) {
    if (grid_ended ? kept_rank : kept_rank > UNWRITTEN_ARGUMENT) end_with(kept);
}

static void on_signal(int number, siginfo_t* info, void*) {
    u64 address = reinterpret_cast<u64>(info->si_addr);
    if (number == SIGTERM) fault("timeout");
    if (number == SIGFPE) fault("divide");
    if (address >= stacks_low && address < stacks_high) fault("stack");
    fault("pointer address=%llu kind=0", (unsigned long long)address);
}

static void catch_signals() {
    static char stack[64 << 10];
    stack_t alternative{};
    alternative.ss_sp = stack;
    alternative.ss_size = sizeof stack;
    sigaltstack(&alternative, nullptr);
    struct sigaction action{};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTERM})
        sigaction(number, &action, nullptr);
}

static u64 next(FILE* request) {
    unsigned long long value = 0;
    if (fscanf(request, "%llu", &value) != 1) _exit(4);
    return value;
}

// The __device__ variables of the source lie between these, in the order of linking: they have the
// values that the launch before left, and these are kept for the next one where it changed them.
extern "C" char emulated_data_first, emulated_data_last, emulated_bss_first, emulated_bss_last;
struct Region {
    char *first, *last;
    char* before;
};
static Region regions[] = {{&emulated_data_first, &emulated_data_last, nullptr},
                           {&emulated_bss_first, &emulated_bss_last, nullptr}};

static void take_variables(const char* path) {
    FILE* kept = fopen(path, "rb");
    for (Region& one : regions) {
        size_t bytes = size_t(one.last - one.first);
        if (kept && fread(one.first, 1, bytes, kept) != bytes) _exit(4);
        one.before = static_cast<char*>(malloc(bytes));
        memcpy(one.before, one.first, bytes);
    }
    if (kept) fclose(kept);
}

static void keep_variables(const char* path) {
    bool changed = false;
    for (Region& one : regions) changed |= memcmp(one.before, one.first, one.last - one.first) != 0;
    FILE* kept = changed ? fopen(path, "wb") : nullptr;
    for (Region& one : regions)
        if (kept) fwrite(one.first, 1, size_t(one.last - one.first), kept);
    if (kept) fclose(kept);
}

// argv: the request, the memory, where to write the result, where the trace or "", and where the
// source's variables are kept.
int main(int, char** argv) {
    FILE* request = fopen(argv[1], "r");
    int memory = open(argv[2], O_RDWR);
    result = fopen(argv[3], "w");
    if (!request || memory < 0 || !result) return 4;
    if (*argv[4]) trace_file = fopen(argv[4], "wb");
    nobodys_value = next(request);
    int entry = int(next(request));
    for (dim3* size : {&gridDim, &blockDim}) {
        size->x = unsigned(next(request));
        size->y = unsigned(next(request));
        size->z = unsigned(next(request));
    }
    dynamic_shared_bytes = next(request);
    n_storages = int(next(request));
    for (int s = 0; s < n_storages; s++) {
        storages[s].offset = next(request);
        storages[s].size = next(request);
        storages[s].cells.shift = __builtin_ctzll(next(request));
        storages[s].flags_offset = next(request);
    }
    // A parameter is "1 storage start span item" for a pointer, "0 bits" for a value.
    int n_parameters = int(next(request)), argument_of[128];
    for (int p = 0; p < n_parameters; p++) {
        argument_of[p] = -1;
        pointers[p] = &values[p];
        if (!next(request)) {
            values[p] = next(request);
            continue;
        }
        Argument& argument = arguments[n_arguments];
        argument.storage = int(next(request));
        argument.start = next(request);
        argument.span = next(request);
        argument.item = next(request);
        argument_of[p] = n_arguments++;
    }
    prepare_memory(memory);
    for (int p = 0; p < n_parameters; p++)
        if (argument_of[p] >= 0) values[p] = arguments[argument_of[p]].base;
    take_variables(argv[5]);
    catch_signals();
    run_grid(entry, pointers);
    report_memory(result);
    keep_variables(argv[5]);
    if (*strayed) fprintf(result, "stray %s\n", strayed + 6);  // without its "fault "
    fprintf(result, "done\n");
    fclose(result);
    if (trace_file) fclose(trace_file);
    return 0;
}
