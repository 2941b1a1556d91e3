// Package naming says in C's terms what errors say in Go's. The Python package puts its own names for C's.
package naming

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/weftgo/weft/bootstrap"
)

// fields are C's names of fields of Specs and options, and of their values, that errors name.
var fields = map[string]string{
	"Experts": "experts", "Layout": "layout", "Reduction": "reduction", "Weighting": "weighting",
	"Payload": "payload", "Quantize": "quantize", "PowerOfTwoScales": "power_of_two_scales",
	"ScaleOrder": "scale_order", "Counts": "counts", "Overflow": "overflow", "SMs": "sms",
	"Alignment": "alignment", "Threads": "threads", "Scratch": "scratch", "Staging": "staging",
	"DTypes": "dtypes", "Channels": "channels", "Depth": "depth", "Spread": "spread", "Spin": "spin_us",
	"Kind": "kind", "Force": "force", "Algorithms": "algorithms", "Select": "select",
	"MaxTokens": "max_tokens", "TopK": "topk", "Hidden": "hidden", "RowBytes": "row_bytes",
	"ScaleBytes": "scale_bytes", "Capacity": "capacity", "Live": "live",
	"SerialGroup": "serial_group", "Output": "output", "HostCounts": "host counts", "DeviceCounts": "device counts",
	"OverflowDrop": "overflow drop",
	"Tuning":       "dispatch_tuning and combine_tuning", "Tuning.Dispatch": "dispatch_tuning",
	"Tuning.Combine": "combine_tuning", "Tuning.HostCopy": "host_copy", "Blocks": "blocks", "Bulk": "bulk",
	"Warps": "warps", "Parts": "parts", "Protocol": "protocol", "Units": "units", "Senders": "senders",
	"Dependent": "dependent", "Spec": "spec",
	"RowWeights": "row_weights", "RowExperts": "row_experts", "RowSelectionWeights": "row_selection_weights",
	"Ranges": "ranges",
}

// calls are C's names of what errors tell to do. WithDeadline sets a member of weft_comm_options.
var calls = strings.NewReplacer(
	"WithDeadline", "deadline_ms", "SetMask", "weft_comm_set_mask", "called Abort", "called weft_comm_abort",
	"Abort ends it", "weft_comm_abort ends it", "Shrink makes", "weft_comm_shrink makes",
	"which the context sets", "which weft_timeout_set sets", "Options.", "",
	"sum, prod, min, max, avg, premulsum", "WEFT_SUM, WEFT_PROD, WEFT_MIN, WEFT_MAX, WEFT_AVG, WEFT_PREMULSUM",
)

// capitalised matches words that may be a field: errors begin with small letters, and most of their
// words do.
var capitalised = regexp.MustCompile(`\b(Tuning\.(Dispatch|Combine|HostCopy)|[A-Z][A-Za-z]+)\b`)

// InC replaces Go's names in an error's words by C's.
func InC(words string) string {
	return capitalised.ReplaceAllStringFunc(calls.Replace(words), func(name string) string {
		if in, ok := fields[name]; ok {
			return in
		}
		return name
	})
}

// Limited says what bounded a call that ended at the deadline of its context, which weft_timeout_set had set to so many
// milliseconds, unless the error says so itself.
func Limited(err error, ms int64) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if _, said := errors.AsType[*bootstrap.LimitError](err); said {
		return err
	}
	return fmt.Errorf("%w: the %d ms that weft_timeout_set gives this thread's calls are over", err, ms)
}
