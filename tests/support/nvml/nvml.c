/* NVIDIA's management library as a stand-in: it answers what the file `nvml.described` beside it says.
 *
 * Written from the public header of the API (nvml.h, API 13). It is as strict as the real one: nothing before init,
 * handles and versions of structures are checked, buffers that are too small are refused.
 *
 * A line of the description is `WHO KEY VALUE`: WHO is a GPU's index or `-` for the whole. A value `!15` makes the
 * call return 15; a key that is not there makes it return 3, «not supported». Besides values there are
 *   hang.CALL 1      the call never returns
 *   delay.CALL 2000  it takes so many microseconds
 *   code.CALL 13     it answers this
 *   lost handle|calls   no handle, or a handle whose every call answers 15
 * It is read when the library is loaded, so that it is found also by a process that then changes its root, and again
 * whenever another file stands in its place: what a GPU answers may change while a process has the library open.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int ret;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct device *dev;

struct line { char *key, *value; };
struct device { int index; int count; struct line lines[768]; };
struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; };
struct memory { u64 total, free, used; };
struct memory_v2 { u32 version; u64 total, reserved, free, used; };
struct process { u32 pid; u64 used; u32 gpu_instance, compute_instance; };
struct process_v1 { u32 pid; u64 used; };
struct process_long { u32 pid; u64 used; u32 gpu_instance, compute_instance; u64 protected; };
struct bar { u64 total, free, used; };
struct clique { unsigned char type; u32 id; };
struct fabric_v4 { unsigned char cluster[16]; ret status; struct clique cliques[64]; u32 count; unsigned char state;
                   u32 health; unsigned char summary; };
struct histogram { u32 max, high, partial, low, none; };
struct field { u32 id, scope; long long timestamp, latency; u32 type; ret code; union { u32 ui; u64 ull; } value; };
struct fabric_v1 { unsigned char cluster[16]; ret status; u32 clique; unsigned char state; };
struct fabric { u32 version; unsigned char cluster[16]; ret status; u32 clique; unsigned char state; u32 health;
                unsigned char summary; };
struct sram { u32 version; u64 aggregate_parity, aggregate_secded, aggregate_corrected, volatile_parity,
              volatile_secded, volatile_corrected, l2, sm, pcie, mcu, other; u32 exceeded; };

struct utilization { u32 gpu, memory; };
struct margin { u32 version; int left; };
struct temperature { u32 version; u32 sensor; int value; };
_Static_assert(sizeof(struct margin) == 8 && sizeof(struct temperature) == 12 && sizeof(struct histogram) == 20, "sizes");

/* The sizes that the header's version words carry, and those without one. */
_Static_assert(sizeof(struct pci) == 68 && sizeof(struct memory_v2) == 40 && sizeof(struct process) == 24, "sizes");
_Static_assert(sizeof(struct process_long) == 32 && sizeof(struct fabric_v4) == 548, "sizes");
_Static_assert(sizeof(struct process_v1) == 16 && sizeof(struct fabric_v1) == 28 && sizeof(struct bar) == 24, "sizes");
_Static_assert(sizeof(struct field) == 40 && sizeof(struct fabric) == 40 && sizeof(struct sram) == 104, "sizes");

enum { OK, UNINITIALIZED, INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15,
       VERSION = 25 };

#define MOST 64
static struct device gpus[MOST], whole;
static int initialised;

static const char *find(const struct device *d, const char *key) {
    for (int i = 0; i < d->count; i++)
        if (!strcmp(d->lines[i].key, key)) return d->lines[i].value;
    return NULL;
}

static void remember(char *text) {
    char *rest = text, *who = strsep(&rest, " "), *key = strsep(&rest, " ");
    if (!key || !rest) return;
    struct device *d = *who == '-' ? &whole : &gpus[atoi(who) % MOST];
    if (d->count == 768) abort();
    d->lines[d->count].key = strdup(key);
    d->lines[d->count++].value = strdup(rest);
}

static char path[4096];
static struct stat described;

static void read_description(void) {
    char *line = NULL;
    size_t size = 0;
    FILE *file = fopen(path, "r");
    if (!file) return;
    fstat(fileno(file), &described);
    whole.count = 0;
    for (int i = 0; i < MOST; i++) gpus[i].count = 0;
    while (getline(&line, &size, file) > 0) {
        line[strcspn(line, "\n")] = 0;
        remember(line);
    }
    free(line);
    fclose(file);
}

/* The file is replaced, and never written in place, so its inode tells. */
static void look_again(void) {
    struct stat now;
    if (!stat(path, &now) && described.st_ino && now.st_ino != described.st_ino) read_description();
}

__attribute__((constructor)) static void load(void) {
    Dl_info info;
    for (int i = 0; i < MOST; i++) gpus[i].index = i;
    if (!dladdr(&whole, &info)) abort();
    snprintf(path, sizeof path - 16, "%s", info.dli_fname);
    char *name = strrchr(path, '/');
    strcpy(name ? name + 1 : path, "nvml.described");
    read_description();
}

static const char *about(const struct device *d, const char *what, const char *call) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", what, call);
    const char *own = d ? find(d, key) : NULL;
    return own ? own : find(&whole, key);
}

/* What every call does first: hang, wait, refuse. */
static ret trouble(const struct device *d, const char *call) {
    const char *text;
    if (about(d, "hang", call))
        for (;;) pause();
    if ((text = about(d, "delay", call))) usleep(atoi(text));
    if ((text = about(d, "code", call))) return atoi(text);
    return OK;
}

static int valid(dev d) {
    int count = find(&whole, "count") ? atoi(find(&whole, "count")) : 0;
    for (int i = 0; i < count && i < MOST; i++)
        if (d == &gpus[i]) return 1;
    return 0;
}

static ret entered(dev d, const char *call) {
    if (!initialised) return UNINITIALIZED;
    look_again();
    if (!valid(d)) return INVALID;
    ret code = trouble(d, call);
    return code ? code : find(d, "lost") ? LOST : OK;
}

#define ENTER(d) do { ret code_ = entered(d, __func__); if (code_) return code_; } while (0)
#define ENTER_WHOLE() do { if (!initialised) return UNINITIALIZED; ret code_ = trouble(NULL, __func__); \
                           if (code_) return code_; } while (0)

static ret number(const struct device *d, const char *key, u64 *out) {
    const char *text = find(d, key);
    if (!text) return NOT_SUPPORTED;
    if (*text == '!') return atoi(text + 1);
    *out = strtoull(text, NULL, 0);
    return OK;
}

static ret number32(const struct device *d, const char *key, u32 *out) {
    u64 value = 0;
    if (!out) return INVALID;
    ret code = number(d, key, &value);
    if (!code) *out = (u32)value;
    return code;
}

static ret text(const struct device *d, const char *key, char *out, u32 length) {
    const char *value = find(d, key);
    if (!out) return INVALID;
    if (!value) return NOT_SUPPORTED;
    if (*value == '!') return atoi(value + 1);
    if (strlen(value) + 1 > length) return TOO_SMALL;
    strcpy(out, value);
    return OK;
}

static ret pci_of(const char *at, struct pci *pci) {
    memset(pci, 0, sizeof *pci);
    if (sscanf(at, "%x:%x:%x.", &pci->domain, &pci->bus, &pci->device) != 3) return NOT_FOUND;
    snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus, pci->device);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    return OK;
}

/* ---------------------------------------------------------------- the whole */

static ret start(const char *call) {
    ret code = trouble(NULL, call);
    u64 refused = 0;
    if (!code && number(&whole, "init", &refused) == OK) code = (ret)refused;
    if (!code) initialised++;
    return code;
}

ret nvmlInit_v2(void) { return start(__func__); }
ret nvmlInit(void) { return start(__func__); }
ret nvmlInitWithFlags(u32 flags) { (void)flags; return start(__func__); }

ret nvmlShutdown(void) {
    if (!initialised) return UNINITIALIZED;
    initialised--;
    return trouble(NULL, __func__);
}

ret nvmlSystemGetDriverVersion(char *out, u32 length) { ENTER_WHOLE(); return text(&whole, "driver", out, length); }
ret nvmlSystemGetNVMLVersion(char *out, u32 length) { ENTER_WHOLE(); return text(&whole, "nvml", out, length); }
ret nvmlSystemGetCudaDriverVersion_v2(int *out) { ENTER_WHOLE(); return number32(&whole, "cuda", (u32 *)out); }
ret nvmlSystemGetCudaDriverVersion(int *out) { ENTER_WHOLE(); return number32(&whole, "cuda", (u32 *)out); }
ret nvmlDeviceGetCount_v2(u32 *out) { ENTER_WHOLE(); return number32(&whole, "count", out); }

static ret handle(dev d, dev *out, const char *call) {
    ret code = trouble(d, call);
    if (code) return code;
    const char *lost = find(d, "lost");
    if (lost && !strcmp(lost, "handle")) return LOST;
    *out = d;
    return OK;
}

ret nvmlDeviceGetHandleByIndex_v2(u32 index, dev *out) {
    if (!initialised) return UNINITIALIZED;
    if (!out || index >= MOST || !valid(&gpus[index])) return INVALID;
    return handle(&gpus[index], out, __func__);
}

ret nvmlDeviceGetHandleByUUID(const char *uuid, dev *out) {
    if (!initialised) return UNINITIALIZED;
    for (int i = 0; uuid && out && i < MOST && valid(&gpus[i]); i++)
        if (find(&gpus[i], "uuid") && !strcmp(find(&gpus[i], "uuid"), uuid)) return handle(&gpus[i], out, __func__);
    return uuid && out ? NOT_FOUND : INVALID;
}

ret nvmlDeviceGetHandleByPciBusId_v2(const char *at, dev *out) {
    struct pci wanted, have;
    if (!initialised) return UNINITIALIZED;
    if (!at || !out || pci_of(at, &wanted)) return INVALID;
    for (int i = 0; i < MOST && valid(&gpus[i]); i++)
        if (find(&gpus[i], "pci") && !pci_of(find(&gpus[i], "pci"), &have) && !strcmp(have.bus_id, wanted.bus_id))
            return handle(&gpus[i], out, __func__);
    return NOT_FOUND;
}

/* ---------------------------------------------------------------- texts and numbers of one device */

#define TEXT(call, key) ret call(dev d, char *out, u32 length) { ENTER(d); return text(d, key, out, length); }
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetBoardPartNumber, "part")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
TEXT(nvmlDeviceGetInforomImageVersion, "inforom")
ret nvmlDeviceGetGspFirmwareVersion(dev d, char *out) { ENTER(d); return text(d, "gsp", out, 64); }

#define NUMBER(call, key) ret call(dev d, u32 *out) { ENTER(d); return number32(d, key, out); }
NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetIndex, "nvml_index")
NUMBER(nvmlDeviceGetNumaNodeId, "numa_id")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_max_generation")
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_max_generation")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_max_width")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie_replays")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetPerformanceState, "state")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")
NUMBER(nvmlDeviceGetDefaultEccMode, "ecc_default")
NUMBER(nvmlDeviceGetVirtualizationMode, "virtualization")
NUMBER(nvmlDeviceGetPowerUsage, "power")
NUMBER(nvmlDeviceGetPowerManagementLimit, "power_limit")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power_default")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_enforced")
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pending")

#define TYPED(call, key) ret call(dev d, u32 type, u32 *out) { \
    char name[64]; ENTER(d); snprintf(name, sizeof name, key ".%u", type); return number32(d, name, out); }
TYPED(nvmlDeviceGetClockInfo, "clock")
TYPED(nvmlDeviceGetMaxClockInfo, "clock_max")
TYPED(nvmlDeviceGetApplicationsClock, "clock_application")
TYPED(nvmlDeviceGetDefaultApplicationsClock, "clock_default")
TYPED(nvmlDeviceGetMaxCustomerBoostClock, "clock_customer")
TYPED(nvmlDeviceGetTemperature, "temperature")
TYPED(nvmlDeviceGetTemperatureThreshold, "threshold")
TYPED(nvmlDeviceGetNvLinkVersion, "nvlink_version")

#define PAIR(call, first, second) ret call(dev d, u32 *a, u32 *b) { \
    ENTER(d); ret code = number32(d, first, a); return code ? code : number32(d, second, b); }
PAIR(nvmlDeviceGetEccMode, "ecc", "ecc_pending")
PAIR(nvmlDeviceGetMigMode, "mig", "mig_pending")
PAIR(nvmlDeviceGetCudaComputeCapability, "capability_major", "capability_minor")
PAIR(nvmlDeviceGetPowerManagementLimitConstraints, "power_min", "power_max")

#define NUMBER64(call, key) ret call(dev d, u64 *out) { ENTER(d); return out ? number(d, key, out) : INVALID; }
NUMBER64(nvmlDeviceGetCurrentClocksEventReasons, "throttle")
NUMBER64(nvmlDeviceGetCurrentClocksThrottleReasons, "throttle")

/* ---------------------------------------------------------------- structures of one device */

ret nvmlDeviceGetUtilizationRates(dev d, struct utilization *out) {
    ENTER(d);
    if (!out) return INVALID;
    out->memory = 0;
    return number32(d, "utilization", &out->gpu);
}

ret nvmlDeviceGetPciInfo_v3(dev d, struct pci *out) {
    ENTER(d);
    const char *at = find(d, "pci");
    if (!out || !at) return INVALID;
    if (*at == '!') return atoi(at + 1);
    out->id = 0x233010de;
    return pci_of(at, out);
}

ret nvmlDeviceGetMemoryInfo_v2(dev d, struct memory_v2 *out) {
    u64 total = 0, reserved = 0, used = 0;
    ENTER(d);
    if (!out) return INVALID;
    if (out->version != (sizeof *out | 2u << 24)) return VERSION;
    ret code = number(d, "memory", &total);
    if (code || (code = number(d, "memory_reserved", &reserved)) || (code = number(d, "memory_used", &used)))
        return code;
    *out = (struct memory_v2){out->version, total, reserved, total - reserved - used, used};
    return OK;
}

ret nvmlDeviceGetMemoryInfo(dev d, struct memory *out) {
    u64 total = 0, reserved = 0, used = 0;
    ENTER(d);
    if (!out) return INVALID;
    ret code = number(d, "memory", &total);
    if (code || (code = number(d, "memory_used", &used))) return code;
    number(d, "memory_reserved", &reserved);
    *out = (struct memory){total, total - reserved - used, used + reserved};
    return OK;
}

ret nvmlDeviceGetTotalEccErrors(dev d, u32 type, u32 counter, u64 *out) {
    char key[64];
    ENTER(d);
    if (!out || type > 1 || counter > 1) return INVALID;
    snprintf(key, sizeof key, "ecc_%s_%s", counter ? "aggregate" : "volatile", type ? "uncorrected" : "corrected");
    return number(d, key, out);
}

ret nvmlDeviceGetSramEccErrorStatus(dev d, struct sram *out) {
    u32 exceeded = 0;
    ENTER(d);
    if (!out) return INVALID;
    if (out->version != (sizeof *out | 1u << 24)) return VERSION;
    ret code = number32(d, "sram_exceeded", &exceeded);
    if (!code) out->exceeded = exceeded;
    return code;
}

ret nvmlDeviceGetRemappedRows(dev d, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    ENTER(d);
    ret code = number32(d, "remap_corrected", corrected);
    if (code || (code = number32(d, "remap_uncorrected", uncorrected))) return code;
    if ((code = number32(d, "remap_pending", pending))) return code;
    return number32(d, "remap_failed", failed);
}

ret nvmlDeviceGetRowRemapperHistogram(dev d, struct histogram *out) {
    ENTER(d);
    const char *text_ = find(d, "remap_banks");
    if (!out) return INVALID;
    if (!text_) return NOT_SUPPORTED;
    if (*text_ == '!') return atoi(text_ + 1);
    return sscanf(text_, "%u %u %u %u %u", &out->max, &out->high, &out->partial, &out->low, &out->none) == 5
               ? OK : NOT_SUPPORTED;
}

ret nvmlDeviceGetBAR1MemoryInfo(dev d, struct bar *out) {
    u64 total = 0;
    ENTER(d);
    if (!out) return INVALID;
    ret code = number(d, "bar", &total);
    if (!code) *out = (struct bar){total, total, 0};
    return code;
}

/* Their presence and absence tell which nvmlProcessInfo_t a library fills. */
ret nvmlDeviceGetConfComputeMemSizeInfo(dev d, void *out) { ENTER(d); (void)out; return NOT_SUPPORTED; }
ret nvmlDeviceGetRunningProcessDetailList(dev d, void *out) { ENTER(d); (void)out; return NOT_SUPPORTED; }

/* `processes` is «PID:BYTES PID:BYTES …», and empty is written as -. Drivers 535.43 to 535.86 (`long_processes`)
 * filled structures of 32 bytes. */
static ret processes(dev d, const char *key, u32 *count, void *out, int old) {
    const char *list = find(d, key);
    u32 pid, room, found = 0;
    u64 used;
    int length;
    if (!count) return INVALID;
    if (!list) return NOT_SUPPORTED;
    if (*list == '!') return atoi(list + 1);
    room = out ? *count : 0;
    for (; sscanf(list, " %u:%llu%n", &pid, &used, &length) == 2; list += length, found++) {
        if (found >= room) continue;
        if (old) ((struct process_v1 *)out)[found] = (struct process_v1){pid, used};
        else if (find(&whole, "long_processes"))
            ((struct process_long *)out)[found] = (struct process_long){pid, used, ~0u, ~0u, ~0ull};
        else ((struct process *)out)[found] = (struct process){pid, used, ~0u, ~0u};
    }
    *count = found;
    return found > room ? TOO_SMALL : OK;
}

#define PROCESSES(call, type, key, old) ret call(dev d, u32 *count, type *out) { \
    ENTER(d); return processes(d, key, count, out, old); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, struct process_v1, "processes", 1)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, struct process, "processes", 0)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, struct process, "processes", 0)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, struct process, "graphics", 0)

ret nvmlDeviceGetFieldValues(dev d, int count, struct field *values) {
    char key[64];
    ENTER(d);
    if (!values || count < 1) return INVALID;
    for (int i = 0; find(&whole, "fields_before") && i < count; i++) /* refuses all for one that is newer */
        if (values[i].id >= (u32)atoi(find(&whole, "fields_before"))) return INVALID;
    for (int i = 0; i < count; i++) {
        snprintf(key, sizeof key, "field.%u.%u", values[i].id, values[i].scope);
        if (!find(d, key)) snprintf(key, sizeof key, "field.%u", values[i].id);
        values[i].type = 3; /* unsigned long long */
        values[i].code = number(d, key, &values[i].value.ull);
        if (!values[i].code && values[i].value.ull >> 32 == 0) values[i].type = 1; /* unsigned int */
    }
    return OK;
}

/* Counters of nvmlNvLinkErrorCounter_t, for libraries that do not know the fields. */
ret nvmlDeviceGetNvLinkErrorCounter(dev d, u32 link, u32 counter, u64 *out) {
    char key[64];
    ENTER(d);
    if (!out || counter > 4) return INVALID;
    snprintf(key, sizeof key, "nvlink_error.%u.%u", counter, link);
    if (!find(d, key)) snprintf(key, sizeof key, "nvlink_error.%u", counter);
    return number(d, key, out);
}

ret nvmlDeviceGetMarginTemperature(dev d, struct margin *out) {
    u32 left = 0;
    ENTER(d);
    if (!out) return INVALID;
    if (out->version != (sizeof *out | 1u << 24)) return VERSION;
    ret code = number32(d, "margin", &left);
    if (!code) out->left = (int)left;
    return code;
}

ret nvmlDeviceGetTemperatureV(dev d, struct temperature *out) {
    u32 value = 0;
    ENTER(d);
    if (!out || out->sensor) return INVALID;
    if (out->version != (sizeof *out | 1u << 24)) return VERSION;
    ret code = number32(d, "temperature.0", &value);
    if (!code) out->value = (int)value;
    return code;
}

/* ---------------------------------------------------------------- NVLink and the fabric */

/* `nvlink.N` is «down», or «up TYPE PCI» of what is at the other end: 0 a GPU, 2 a switch. */
static ret link_of(dev d, u32 link, int *up, u32 *type, char *at) {
    char key[64];
    snprintf(key, sizeof key, "nvlink.%u", link);
    const char *value = find(d, key);
    if (!value) return find(d, "nvlink.0") ? INVALID : NOT_SUPPORTED;
    if (*value == '!') return atoi(value + 1);
    *up = sscanf(value, "up %u %31s", type, at) == 2;
    return OK;
}

#define LINK() int up; u32 type; char at[32]; ENTER(d); if (!out) return INVALID; \
    ret code = link_of(d, link, &up, &type, at); if (code) return code

ret nvmlDeviceGetNvLinkState(dev d, u32 link, u32 *out) { LINK(); *out = up; return OK; }
ret nvmlDeviceGetNvLinkRemoteDeviceType(dev d, u32 link, u32 *out) {
    LINK();
    if (up) *out = type;
    return up ? OK : NOT_SUPPORTED;
}
ret nvmlDeviceGetNvLinkRemotePciInfo_v2(dev d, u32 link, struct pci *out) {
    LINK();
    return up ? pci_of(at, out) : NOT_SUPPORTED;
}

ret nvmlDeviceGetP2PStatus(dev d, dev other, u32 capability, u32 *out) {
    char key[64];
    ENTER(d);
    if (!out || !valid(other) || capability > 5) return INVALID;
    if (find(other, "lost")) return LOST;
    snprintf(key, sizeof key, "p2p.%u.%d", capability, other->index);
    if (number32(d, key, out) == NOT_SUPPORTED) *out = 0;
    return OK;
}

ret nvmlDeviceGetTopologyCommonAncestor(dev d, dev other, u32 *out) {
    char key[64];
    ENTER(d);
    if (!out || !valid(other)) return INVALID;
    snprintf(key, sizeof key, "ancestor.%d", other->index);
    return number32(d, key, out);
}

/* `fabric` is «STATE STATUS CLIQUE HEALTH-MASK SUMMARY», `fabric_cluster` 32 hexadecimal digits. */
static ret fabric(dev d, struct fabric *out) {
    u32 state, status, clique, health, summary;
    const char *value = find(d, "fabric");
    if (!value) return NOT_SUPPORTED;
    if (*value == '!') return atoi(value + 1);
    if (sscanf(value, "%u %u %u %i %u", &state, &status, &clique, &health, &summary) != 5) return NOT_SUPPORTED;
    out->status = (ret)status;
    out->clique = clique;
    out->state = (unsigned char)state;
    out->health = health;
    out->summary = (unsigned char)summary;
    const char *cluster = find(d, "fabric_cluster");
    for (int byte = 0; cluster && byte < 16; byte++)
        if (sscanf(cluster + 2 * byte, "%2hhx", &out->cluster[byte]) != 1) return NOT_SUPPORTED;
    return OK;
}

ret nvmlDeviceGetGpuFabricInfoV(dev d, void *out) {
    struct fabric mine = {0};
    ENTER(d);
    if (!out) return INVALID;
    u32 version = *(u32 *)out;
    size_t size = version & 0xffffff;
    if (version != (36 | 2u << 24) && version != (40 | 3u << 24)) return VERSION;
    mine.version = version;
    ret code = fabric(d, &mine);
    if (!code) memcpy(out, &mine, size);
    return code;
}

ret nvmlDeviceGetGpuFabricInfo_v4(dev d, struct fabric_v4 *out) {
    struct fabric mine = {0};
    ENTER(d);
    ret code = out ? fabric(d, &mine) : INVALID;
    if (code) return code;
    *out = (struct fabric_v4){{0}, mine.status, {{0, mine.clique}}, 1, mine.state, mine.health, mine.summary};
    memcpy(out->cluster, mine.cluster, sizeof mine.cluster);
    return OK;
}

ret nvmlDeviceGetGpuFabricInfo(dev d, struct fabric_v1 *out) {
    struct fabric mine = {0};
    ENTER(d);
    ret code = out ? fabric(d, &mine) : INVALID;
    if (!code) *out = (struct fabric_v1){{0}, mine.status, mine.clique, mine.state};
    if (!code) memcpy(out->cluster, mine.cluster, sizeof mine.cluster);
    return code;
}
