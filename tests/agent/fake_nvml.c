/* A small NVML for tests, below the real nvidia-ml-py. What the devices are like stands in the text file that FAKE_NVML
 * names and is read at every call, so that a test can change it under a running agent. One device per line:
 *
 *     name|memory_mb|used_mb|utilisation|temperature|milliwatts|throttle|fault|pid,pid,...|nvlink island|xid
 *
 * A field of "-" answers "not supported". fault: ok, lost (fallen off the bus) or gone (not counted any more). An xid is told
 * once each time that its text changes ("79", "79 again"). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, INSUFFICIENT = 7, NOT_LOADED = 9, TIMEOUT = 10, LOST = 15 };
enum { FIELDS = 11, MOST = 16, WIDTH = 128 };
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned gpu, memory; } utilisation_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;

static char fields[MOST][FIELDS][WIDTH];
static char told[MOST][WIDTH];
static int watched[MOST];
static unsigned count;
static int opened;

static int load(void) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[1024];
    if (!file) return 0;
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

#define INDEX(device) ((unsigned)(uintptr_t)(device) - 1)
#define LOOK(device)                                          \
    if (!opened) return UNINITIALIZED;                        \
    if (!load()) return NOT_LOADED;                           \
    if (INDEX(device) >= count) return INVALID;               \
    if (!strcmp(fields[INDEX(device)][7], "lost")) return LOST;
#define FIELD(device, n)                                      \
    LOOK(device)                                              \
    const char *text = fields[INDEX(device)][n];              \
    if (!strcmp(text, "-")) return NOT_SUPPORTED;

int nvmlInit_v2(void) { return load() ? (opened++, SUCCESS) : NOT_LOADED; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return opened ? (opened--, SUCCESS) : UNINITIALIZED; }
const char *nvmlErrorString(int code) { return code == LOST ? "GPU is lost" : code == NOT_SUPPORTED ? "Not Supported" : "an error"; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { snprintf(to, size, "580.00.00-fake"); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *found) { if (!load()) return UNINITIALIZED; *found = count; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (!load() || index >= count) return INVALID;
    *device = (void *)(uintptr_t)(index + 1);
    return SUCCESS;
}
int nvmlDeviceGetUUID(void *device, char *to, unsigned size) { LOOK(device) snprintf(to, size, "GPU-fake-%u", INDEX(device)); return SUCCESS; }
int nvmlDeviceGetName(void *device, char *to, unsigned size) { FIELD(device, 0) snprintf(to, size, "%s", text); return SUCCESS; }
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    FIELD(device, 1)
    memory->total = strtoull(text, NULL, 10) << 20;
    memory->used = strtoull(fields[INDEX(device)][2], NULL, 10) << 20;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(void *device, utilisation_t *rates) { FIELD(device, 3) rates->gpu = atoi(text); rates->memory = 0; return SUCCESS; }
int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *celsius) { (void)sensor; FIELD(device, 4) *celsius = atoi(text); return SUCCESS; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { FIELD(device, 5) *milliwatts = atoi(text); return SUCCESS; }
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) { FIELD(device, 6) *reasons = strtoull(text, NULL, 0); return SUCCESS; }
int nvmlDeviceGetPciInfo_v3(void *device, pci_t *pci) {
    /* The address is the driver's own and is known of a lost device, too. */
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", INDEX(device) + 1);
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *size, process_t *found) {
    char copy[WIDTH], *rest = copy, *pid;
    unsigned n = 0, room = *size;
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
        *event = (event_t){(void *)(uintptr_t)(i + 1), 8, atoi(told[i]), 0, 0};
        return SUCCESS;
    }
    return TIMEOUT;
}
