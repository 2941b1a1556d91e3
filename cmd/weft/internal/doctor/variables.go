package doctor

import (
	"slices"
	"strings"
)

// variables are those of the environment that Weft reads and that have its name.
var variables = []string{
	"WEFT_ADDRESS", "WEFT_BENCH_TASK", "WEFT_CACHE", "WEFT_CACHE_DIR", "WEFT_CHECK", "WEFT_COLLECTIVE_STAGING",
	"WEFT_COMPILED", "WEFT_EP_COPIES", "WEFT_HEARTBEAT", "WEFT_HOSTID", "WEFT_ID", "WEFT_INTERFACE",
	"WEFT_LIBFABRIC", "WEFT_LIBIBVERBS", "WEFT_LIBRARY", "WEFT_LL128", "WEFT_LOCAL_RANK", "WEFT_LOCAL_SIZE",
	"WEFT_LOG", "WEFT_MULTICAST", "WEFT_NIC", "WEFT_NO_PEER", "WEFT_NVRTC", "WEFT_PYTHON", "WEFT_RANK",
	"WEFT_RUN_ENDED", "WEFT_RUN_LIFELINE", "WEFT_SECRET", "WEFT_SIMD", "WEFT_SIZE", "WEFT_STORE", "WEFT_TRACE",
	"WEFT_TUNING",
}

// unread are the variables with Weft's name that nothing reads, sorted.
func unread(environ []string) []string {
	var out []string
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if strings.HasPrefix(name, "WEFT_") && !slices.Contains(variables, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// variablesFinding says which variables have no effect: their names may be misspelt.
func variablesFinding(names []string) Finding {
	meaning := "Weft reads no such variable; the page on troubleshooting lists all"
	if len(names) > 1 {
		meaning = "Weft reads no such variables; the page on troubleshooting lists all"
	}
	return Finding{"variables", strings.Join(names, ", "), meaning, Note}
}
