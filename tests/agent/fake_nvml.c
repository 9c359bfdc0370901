/* A small NVML for tests, below the real nvidia-ml-py. What the devices are like stands in the text file that FAKE_NVML
 * names and is read at every call, so that a test can change it under a running agent. One device per line:
 *
 *     name|memory_mb|used_mb|utilisation|temperature|milliwatts|throttle|fault|pid,pid,...|nvlink island|xid|more|mig
 *
 * A field of "-" answers "not supported". fault: ok, lost (fallen off the bus), shut (lost, and it cannot be opened either), gone
 * (not counted any more) or hang (calls do not return). Without the file the driver is not loaded: what had opened it must close it first. An xid is reported
 * once each time that its text changes ("79", "79 again"; "79@2": of GPU instance 2). more: SM MHz, memory MHz, power limit in
 * milliwatts, ECC errors corrected and not, by commas. mig: empty if the mode is off, else one instance per slot by commas,
 * each gpu_slices/compute_slices/memory_mb/used_mb/name/pid (the name and the pid may be missing), or nothing for a slot
 * that is not used. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, INSUFFICIENT = 7, NOT_LOADED = 9, TIMEOUT = 10, LOST = 15, NOT_FOUND = 6, NO_FUNCTION = 13 };
enum { FIELDS = 13, MOST = 16, WIDTH = 256, SLOTS = 7, PARTS = 6, FIRST_MIG = 1000 };
static const unsigned long long RESERVED = 480ull << 20;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } utilisation_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event_t;
typedef struct { unsigned multiprocessors, engines[5], gpu_slices, compute_slices; unsigned long long memory_mb; } attributes_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;

static char fields[MOST][FIELDS][WIDTH];
static char told[MOST][WIDTH];
static int watched[MOST];
static unsigned count;
static int opened;
static int stale;  /* the driver was unloaded under the open library */

static int load(void) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[2048];
    if (!file) stale = opened > 0;
    if (stale && file) fclose(file);
    if (!file || stale) return 0;
    count = 0;
    while (count < MOST && fgets(line, sizeof line, file)) {
        char *rest = line;
        line[strcspn(line, "\n")] = 0;
        for (int i = 0; i < FIELDS; i++) {
            char *field = strsep(&rest, "|");
            snprintf(fields[count][i], WIDTH, "%s", field ? field : "");
        }
        if (strcmp(fields[count][7], "gone")) count++;
    }
    fclose(file);
    return 1;
}

#define IS_LOST(index) (!strcmp(fields[index][7], "lost") || IS_SHUT(index))
#define IS_SHUT(index) (!strcmp(fields[index][7], "shut"))
#define INDEX(device) ((unsigned)(uintptr_t)(device) - 1)
#define LOOK(device)                                          \
    if (!opened) return UNINITIALIZED;                        \
    if (!load()) return NOT_LOADED;                           \
    if (INDEX(device) >= count) return INVALID;               \
    while (!strcmp(fields[INDEX(device)][7], "hang")) pause(); \
    if (IS_LOST(INDEX(device))) return LOST;
#define FIELD(device, n)                                      \
    LOOK(device)                                              \
    const char *text = fields[INDEX(device)][n];              \
    if (!strcmp(text, "-")) return NOT_SUPPORTED;

/* The handle of a MIG instance is FIRST_MIG + gpu * SLOTS + slot. */
#define IS_MIG(device) ((uintptr_t)(device) >= FIRST_MIG)
static int part(void *device, int n, char *to) {
    unsigned number = (unsigned)(uintptr_t)device - FIRST_MIG, gpu = number / SLOTS, slot = number % SLOTS;
    char copy[WIDTH], *rest = copy, *text = NULL;
    if (!load() || gpu >= count) return 0;
    snprintf(copy, sizeof copy, "%s", fields[gpu][12]);
    for (unsigned i = 0; i <= slot; i++) text = strsep(&rest, ",");
    if (!text || !*text) return 0;
    char *own = text;
    for (int i = 0; i <= n; i++) text = strsep(&own, "/");
    snprintf(to, WIDTH, "%s", text ? text : "");
    return 1;
}
#define PART(device, n)                                       \
    char text[WIDTH];                                         \
    LOOK((void *)(((uintptr_t)(device) - FIRST_MIG) / SLOTS + 1)) \
    if (!part(device, n, text)) return INVALID;

static int more(void *device, int n, unsigned long long *to) {
    FIELD(device, 11)
    char copy[WIDTH], *rest = copy, *own = NULL;
    snprintf(copy, sizeof copy, "%s", text);
    for (int i = 0; i <= n; i++) own = strsep(&rest, ",");
    if (!own || !*own || !strcmp(own, "-")) return NOT_SUPPORTED;
    *to = strtoull(own, NULL, 10);
    return SUCCESS;
}
static int more_unsigned(void *device, int n, unsigned *to) {
    unsigned long long found = 0;
    int code = more(device, n, &found);
    *to = (unsigned)found;
    return code;
}

/* As the real one: counts, and only the first one connects. */
int nvmlInit_v2(void) { return opened || load() ? (opened++, SUCCESS) : NOT_LOADED; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) {
    if (!opened) return UNINITIALIZED;
    if (!--opened) stale = 0;
    return SUCCESS;
}
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : code == NOT_SUPPORTED ? "Not Supported" : "an error"; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { snprintf(to, size, "580.00.00-fake"); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *found) { if (!load()) return UNINITIALIZED; *found = count; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (!load() || index >= count) return INVALID;
    if (IS_SHUT(index)) return LOST;
    *device = (void *)(uintptr_t)(index + 1);
    return SUCCESS;
}
int nvmlDeviceGetUUID(void *device, char *to, unsigned size) {
    if (IS_MIG(device)) {
        unsigned number = (unsigned)(uintptr_t)device - FIRST_MIG;
        PART(device, 0)
        snprintf(to, size, "MIG-fake-%u-%u-%sg", number / SLOTS, number % SLOTS, text);
        return SUCCESS;
    }
    LOOK(device)
    snprintf(to, size, "GPU-fake-%u", INDEX(device));
    return SUCCESS;
}
int nvmlDeviceGetName(void *device, char *to, unsigned size) {
    if (IS_MIG(device)) {
        PART(device, 4)
        snprintf(to, size, "%s", text);
        return *text ? SUCCESS : NOT_SUPPORTED;
    }
    FIELD(device, 0)
    snprintf(to, size, "%s", text);
    return SUCCESS;
}
static int memory_of(void *device, memory_t *memory) {
    if (IS_MIG(device)) {
        char used[WIDTH];
        PART(device, 2)
        part(device, 3, used);
        memory->total = strtoull(text, NULL, 10) << 20;
        memory->used = strtoull(used, NULL, 10) << 20;
        return SUCCESS;
    }
    FIELD(device, 1)
    memory->total = strtoull(text, NULL, 10) << 20;
    memory->used = strtoull(fields[INDEX(device)][2], NULL, 10) << 20;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}
/* As the real one: the memory that the driver keeps for itself counts as used. */
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    int result = memory_of(device, memory);
    memory->used += RESERVED;
    return result;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2_t *memory) {
    memory_t first = {0};
    if (getenv("FAKE_NVML_OLD")) return NO_FUNCTION;
    int result = memory_of(device, &first);
    memory->total = first.total, memory->reserved = RESERVED, memory->free = first.free, memory->used = first.used;
    return result;
}
int nvmlDeviceGetUtilizationRates(void *device, utilisation_t *rates) { FIELD(device, 3) rates->gpu = atoi(text); rates->memory = 0; return SUCCESS; }
int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *celsius) { (void)sensor; FIELD(device, 4) *celsius = atoi(text); return SUCCESS; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { FIELD(device, 5) *milliwatts = atoi(text); return SUCCESS; }
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) { FIELD(device, 6) *reasons = strtoull(text, NULL, 0); return SUCCESS; }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts) { return more_unsigned(device, 2, milliwatts); }
int nvmlDeviceGetClockInfo(void *device, unsigned kind, unsigned *mhz) { return more_unsigned(device, kind == 1 ? 0 : kind == 2 ? 1 : 9, mhz); }
int nvmlDeviceGetTotalEccErrors(void *device, unsigned kind, unsigned counter, unsigned long long *errors) {
    return counter ? NOT_SUPPORTED : more(device, 3 + (int)kind, errors);
}
int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    FIELD(device, 12)
    *current = *pending = *text != 0;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *found) { LOOK(device) *found = SLOTS; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned slot, void **found) {
    char text[WIDTH];
    LOOK(device)
    *found = (void *)(uintptr_t)(FIRST_MIG + INDEX(device) * SLOTS + slot);
    return part(*found, 0, text) ? SUCCESS : NOT_FOUND;
}
int nvmlDeviceGetGpuInstanceId(void *device, unsigned *id) {
    if (!IS_MIG(device)) return INVALID;
    *id = ((unsigned)(uintptr_t)device - FIRST_MIG) % SLOTS + 1;
    return SUCCESS;
}
int nvmlDeviceGetAttributes_v2(void *device, attributes_t *attributes) {
    char compute[WIDTH], memory[WIDTH];
    if (!IS_MIG(device)) return INVALID;
    PART(device, 0)
    part(device, 1, compute);
    part(device, 2, memory);
    memset(attributes, 0, sizeof *attributes);
    attributes->gpu_slices = atoi(text);
    attributes->compute_slices = atoi(compute);
    attributes->memory_mb = strtoull(memory, NULL, 10);
    return SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(void *device, pci_t *pci) {
    /* The address is the driver's own and is known of a lost device, too, but not of one that cannot be opened. */
    if (IS_SHUT(INDEX(device))) return LOST;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", INDEX(device) + 1);
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *size, process_t *found) {
    char copy[WIDTH], *rest = copy, *pid;
    unsigned n = 0, room = *size;
    if (IS_MIG(device)) {
        PART(device, 5)
        *size = *text != 0;
        if (*text && room && found) found[0] = (process_t){atoi(text), 1 << 20, 1, 0};
        return *text && !room ? INSUFFICIENT : SUCCESS;
    }
    FIELD(device, 8)
    snprintf(copy, sizeof copy, "%s", text);
    while ((pid = strsep(&rest, ",")) && *pid) {
        if (n < room && found) found[n] = (process_t){atoi(pid), 1 << 20, 0xFFFFFFFF, 0xFFFFFFFF};
        n++;
    }
    *size = n;
    return n > room ? INSUFFICIENT : SUCCESS;
}
int nvmlDeviceGetP2PStatus(void *device, void *other, unsigned caps, unsigned *status) {
    char island[WIDTH];
    (void)caps;
    LOOK(device)
    if (INDEX(other) >= count) return INVALID;
    snprintf(island, sizeof island, "%s", fields[INDEX(device)][9]);
    *status = island[0] && !strcmp(island, fields[INDEX(other)][9]) ? 0 : 5;
    return SUCCESS;
}
int nvmlEventSetCreate(void **set) { *set = told; return SUCCESS; }
int nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }
int nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *types) { FIELD(device, 10) (void)text; *types = 8; return SUCCESS; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
    (void)set;
    LOOK(device)
    watched[INDEX(device)] = types == 8;
    return SUCCESS;
}
int nvmlEventSetWait_v2(void *set, event_t *event, unsigned milliseconds) {
    (void)set; (void)milliseconds;
    if (!load()) return UNINITIALIZED;
    for (unsigned i = 0; i < count; i++) {
        if (!watched[i] || !strcmp(fields[i][10], told[i])) continue;
        strcpy(told[i], fields[i][10]);
        if (!told[i][0]) continue;
        const char *at = strchr(told[i], '@');
        *event = (event_t){(void *)(uintptr_t)(i + 1), 8, atoi(told[i]), at ? atoi(at + 1) : 0xFFFFFFFF, 0xFFFFFFFF};
        return SUCCESS;
    }
    return TIMEOUT;
}
