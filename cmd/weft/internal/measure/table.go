package measure

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Table prints records as rows of tables, one for each kind of operation, whose columns do not depend on later
// rows. Lines that begin with # explain: the columns of a table, and what the rows below have in common.
func Table(w io.Writer) Printer { return &table{w: bufio.NewWriter(w)} }

type table struct {
	w      *bufio.Writer
	kind   *kind
	common string
}

// kind is a kind of operation: its columns, what they mean, and its rows.
type kind struct {
	head, legend string
	common       func(*Record) string // what is the same in many rows
	row          func(*Record) string
}

const (
	expertRow     = "%-10s %5v %7v %10s %10s %8s %8s %10s %6s  %s"
	collectiveRow = "%-13s %5v %9s %9s %9s %8s %8s %9s %6s %7v  %-8s  %s"
	joinRow       = "%-6s %5v %10s %10s %8s %10s"
)

// What columns of several tables mean.
const (
	times = "p50, p99: us of the slowest rank of each iteration, and over iterations the median and the 99th percentile."
	ratio = "ratio: floor over p50. 1 is the speed of memcpy. It is more where operands stay in caches, and less where " +
		"an operation waits for signals and not for bytes."
)

var kinds = struct{ expert, collective, join kind }{
	expert: kind{
		head: fmt.Sprintf(expertRow, "op", "ranks", "tokens", "p50 us", "p99 us", "slowest", "GB/s", "floor us", "ratio",
			"output"),
		legend: times + "\n" +
			"slowest: the rank that most often was it. GB/s: 10^9 bytes a second, a row for each selection, over p50.\n" +
			"floor: us in which memcpy moves the same bytes through cold memory, a thread for each rank.\n" + ratio,
		common: func(r *Record) string {
			return fmt.Sprintf("rows of %d %s, top-%d of %s, %s", r.Hidden, r.DType, r.TopK, Count(r.Experts, "expert"),
				r.Layout)
		},
		row: func(r *Record) string {
			return fmt.Sprintf(expertRow, r.Op, r.Ranks, r.Tokens, Number(r.P50), Number(r.P99),
				fmt.Sprintf("rank %d", r.Slowest), some(r.GBps), some(r.Floor), some(r.FloorRatio), r.output())
		},
	},
	collective: kind{
		head: fmt.Sprintf(collectiveRow, "op", "ranks", "size", "p50 us", "p99 us", "algbw", "busbw", "floor us",
			"ratio", "#wrong", "output", "algorithm"),
		legend: times + "\n" +
			"size, algbw, busbw: as nccl-tests counts them, in 10^9 bytes a second: size over p50, and what of it a link " +
			"carries.\n" +
			"floor: us in which memcpy, or the links between GPUs, carry as much as busbw counts, through cold memory.\n" +
			ratio + "\n" +
			"#wrong: elements of the output that differ from a plain loop's. algorithm: the one that ran.",
		common: func(r *Record) string {
			if r.Bytes == 0 {
				return ""
			}
			words := []string{r.DType}
			if r.Reduction != "" {
				words = append(words, r.Reduction)
			}
			place := "out of place"
			if r.InPlace {
				place = "in place"
			}
			return strings.Join(words, " ") + ", " + place
		},
		row: func(r *Record) string {
			_, algorithm, ok := strings.Cut(r.Algorithm, "/")
			if !ok {
				algorithm = r.Algorithm
			}
			size := "-" // of a barrier
			if r.Bytes > 0 {
				size = Size(r.Bytes)
			}
			return fmt.Sprintf(collectiveRow, r.Op, r.Ranks, size, Number(r.P50), Number(r.P99), some(r.AlgBW),
				some(r.BusBW), some(r.Floor), some(r.FloorRatio), r.Wrong, r.output(), algorithm)
		},
	},
	join: kind{
		head: fmt.Sprintf(joinRow, "op", "ranks", "p50 us", "p99 us", "slowest", "memory"),
		legend: times + "\n" +
			"slowest: the rank that most often was it. memory: that is resident, of the largest rank, shared memory not " +
			"counted.",
		common: func(*Record) string { return "" },
		row: func(r *Record) string {
			return fmt.Sprintf(joinRow, r.Op, r.Ranks, Number(r.P50), Number(r.P99), fmt.Sprintf("rank %d", r.Slowest),
				Size(r.Memory))
		},
	},
}

func kindOf(r *Record) *kind {
	switch {
	case r.Collective != nil:
		return &kinds.collective
	case r.Tokens > 0:
		return &kinds.expert
	}
	return &kinds.join
}

func (t *table) Print(r Record) error {
	k := kindOf(&r)
	common := k.common(&r)
	if k != t.kind {
		if t.kind != nil {
			fmt.Fprintln(t.w)
		}
		Comment(t.w, k.legend)
	}
	if k != t.kind || common != t.common {
		if common != "" {
			Comment(t.w, common)
		}
		fmt.Fprintln(t.w, strings.TrimRight(k.head, " "))
	}
	t.kind, t.common = k, common
	fmt.Fprintln(t.w, strings.TrimRight(k.row(&r), " "))
	return t.w.Flush()
}

// Comment prints text as lines that begin with #.
func Comment(w io.Writer, text string) {
	const width = 110
	for line := range strings.SplitSeq(text, "\n") {
		for len(line) > width {
			cut := strings.LastIndex(line[:width], " ")
			if cut < 0 {
				break
			}
			fmt.Fprintln(w, "# "+line[:cut])
			line = line[cut+1:]
		}
		fmt.Fprintln(w, "# "+line)
	}
}

func (r *Record) output() string {
	if r.Verified {
		return "verified"
	}
	return "WRONG"
}

// Number writes three significant digits or so, never with an exponent.
func Number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 0.1 || v == 0:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.4f", v)
}

// some is Number of what was measured, and a dash for what was not.
func some(v float64) string {
	if v == 0 {
		return "-"
	}
	return Number(v)
}
