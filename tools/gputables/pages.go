package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// exchanges are the steps of weft bench ep with few tokens, or with many.
func exchanges(r run, ht bool) []step {
	var of []step
	for _, s := range r.steps {
		ep := strings.HasPrefix(s.command, "weft bench ep") && len(s.rows) > 0
		if ep && strings.Contains(s.command, "--mode ht") == ht {
			of = append(of, s)
		}
	}
	return of
}

// few has a table of each run of few tokens: us by tokens.
func few(r run) []table {
	var all []table
	for _, s := range exchanges(r, false) {
		p, alone := newPivot[int](), newPivot[string]()
		var missed []string
		for _, x := range s.rows {
			if x.Engine != "gpu" {
				continue
			}
			label := x.Contract + " | " + x.Op
			p.set(label+" | Weft", x.Tokens, x.us(x.P50))
			if us := x.asked(fewTargets, x.Tokens); us > 0 {
				p.set(label+" | target", x.Tokens, strconv.FormatFloat(us, 'f', -1, 64))
			}
			if x.Floor > 0 {
				p.set(label+" | links alone", x.Tokens, x.us(x.Floor))
			}
			missed = append(missed, over(x)...)
			if x.Tokens == 1 || x.Tokens == 128 {
				alone.set(label, fmt.Sprintf("%03d alone", x.Tokens), x.us(x.Kernel))
				alone.set(label, fmt.Sprintf("%03d cold", x.Tokens), x.us(x.Cold))
			}
		}
		t := p.table(fmt.Sprintf("Few tokens, %d GPUs (%s)", s.rows[0].GPUs, s.name), s.command,
			"contract | operation | ", strconv.Itoa)
		t.missed = missed
		all = append(all, t, alone.table("Alone, and with cold caches ("+s.name+")", s.command, "contract | operation",
			func(c string) string { return strings.TrimLeft(c, "0") }))
	}
	return all
}

// many has a table of each run of thousands of tokens, by SMs where there is one number of tokens, else by tokens.
func many(r run) []table {
	var all []table
	for _, s := range exchanges(r, true) {
		p, tokens := newPivot[int](), map[int]bool{}
		for _, x := range s.rows {
			tokens[x.Tokens] = x.Engine == "gpu"
		}
		var missed []string
		for _, x := range s.rows {
			switch {
			case x.Engine != "gpu":
				continue
			case len(tokens) == 1:
				p.set(x.Contract+" | "+x.Op, x.SMs, fmt.Sprintf("%s (%.0f)", x.us(x.P50), x.GBps))
			default:
				p.set(fmt.Sprintf("%s | %s | %d", x.Contract, x.Op, x.SMs), x.Tokens, x.us(x.P50))
			}
			missed = append(missed, over(x)...)
		}
		labels, name := "contract | operation | SMs", strconv.Itoa
		if len(tokens) == 1 {
			labels, name = "contract | operation", func(n int) string { return fmt.Sprintf("%d SMs (GB/s)", n) }
		}
		t := p.table(fmt.Sprintf("Thousands of tokens, %d GPUs (%s)", s.rows[0].GPUs, s.name), s.command, labels, name)
		t.missed = missed
		all = append(all, t)
	}
	return all
}

func overlap(r run) []table {
	var all []table
	for _, s := range r.steps {
		if !strings.HasPrefix(s.command, "weft bench overlap") || len(s.rows) == 0 {
			continue
		}
		t := table{title: "Beside a matrix product (" + s.name + ")", command: s.command, head: []string{
			"contract", "operation", "tokens", "SMs", "alone", "beside", "product slower by", "by SMs alone",
		}}
		for _, x := range s.rows {
			t.lines = append(t.lines, []string{
				x.Contract, x.Op, strconv.Itoa(x.Tokens), strconv.Itoa(x.SMs), x.us(x.Alone), x.us(x.Beside),
				fmt.Sprintf("%.2f", x.Product), fmt.Sprintf("%.2f", x.Share),
			})
		}
		all = append(all, t)
	}
	return all
}

// links has the smallest operations, and GB/s out of each GPU by SMs, all to all.
func links(r run) []table {
	var all []table
	for _, s := range r.steps {
		if !strings.HasPrefix(s.command, "weft bench link") || len(s.rows) == 0 {
			continue
		}
		title := fmt.Sprintf("Links, %d GPUs (%s)", s.rows[0].GPUs, s.name)
		small := table{title: title, command: s.command, head: []string{"smallest operation", "us"}}
		p := newPivot[int]()
		for _, x := range s.rows {
			switch {
			case x.Op == "link" && x.Pattern == "":
				small.lines = append(small.lines, []string{x.Way, x.us(x.P50)})
			case x.Op == "link" && (x.Pattern == "all-to-all" || x.Pattern == "local"):
				p.set(x.Way, x.SMs, fmt.Sprintf("%.0f", x.GBps))
			}
		}
		all = append(all, small, p.table(title+", GB/s by SMs", s.command, "way", strconv.Itoa))
	}
	return all
}

func start(r run) []table {
	var all []table
	for _, s := range r.steps {
		if !strings.HasPrefix(s.command, "weft bench start") || len(s.rows) == 0 {
			continue
		}
		t := table{title: "Start-up (" + s.name + ")", command: s.command, head: []string{
			"operation", "ranks", "first dispatch has ended after, us", "join", "windows and kernels", "dispatch",
		}}
		for _, x := range s.rows {
			t.lines = append(t.lines, []string{
				x.Op, strconv.Itoa(x.Ranks), x.us(x.P50), x.us(x.Join), x.us(x.Handle), x.us(x.Dispatch),
			})
		}
		all = append(all, t)
	}
	return all
}

// collectives has a table for each number of ranks: a row for each size, columns for each collective, way and library.
func collectives(r run) []table {
	of := map[int]*pivot[string]{}
	commands, missed := map[int][]string{}, map[int][]string{}
	for _, s := range r.steps {
		if part, _, _ := strings.Cut(strings.TrimPrefix(s.command, "weft bench "), " "); part == s.command ||
			!slices.Contains(order, part) {
			continue
		}
		for i, x := range s.rows {
			if of[x.Ranks] == nil {
				of[x.Ranks] = newPivot[string]()
			}
			if i == 0 {
				commands[x.Ranks] = append(commands[x.Ranks], s.command)
			}
			library := map[string]string{"gpu": "1", "nccl": "3 NCCL"}[x.Engine]
			if x.Operand == "window" {
				library = "2 in windows"
			}
			if x.Skipped != "" || library == "" {
				continue
			}
			cell := x.us(x.P50)
			if x.Bytes >= 8<<20 {
				cell += fmt.Sprintf(" (%.0f)", x.BusBW)
			}
			// Labels are put in order below, by what is cut off there.
			column := fmt.Sprintf("%d%s %s", slices.Index(order, x.Op), x.Op, library)
			of[x.Ranks].set(fmt.Sprintf("%020d|%s", x.Bytes, size(x.Bytes)), column, cell)
			missed[x.Ranks] = append(missed[x.Ranks], over(x)...)
		}
	}
	var all []table
	for _, ranks := range []int{1, 2, 4, 8} {
		p := of[ranks]
		if p == nil {
			continue
		}
		slices.Sort(p.labels)
		t := p.table(fmt.Sprintf("Collectives, %d GPUs: us, and from 8 MB on the bus bandwidth in GB/s", ranks),
			strings.Join(commands[ranks], "`\n`"), "bytes", func(c string) string {
				op, library, _ := strings.Cut(c[1:], " ")
				return op + library[1:]
			})
		for _, l := range t.lines {
			_, l[0], _ = strings.Cut(l[0], "|")
		}
		t.missed = missed[ranks]
		all = append(all, t)
	}
	return all
}

var order = []string{
	"allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather", "scatter", "sendrecv",
	"barrier",
}

// peers has the same bytes without any routing, of what was measured in the same runs.
func peers(r run) []table {
	var all []table
	for _, s := range r.steps {
		p := newPivot[int64]()
		for _, x := range s.rows {
			if x.Engine == "peer" && x.Skipped == "" && x.Source == "" && strings.HasPrefix(s.command, "weft bench ep") {
				p.set(x.Contract, x.WireBytes, x.us(x.P50))
			}
		}
		if len(p.labels) > 0 {
			all = append(all, p.table("The same bytes without any routing ("+s.name+")", s.command, "us", size))
		}
	}
	return all
}

// plans has what benchmarks of plans say, beside what the library does.
func plans(r run) []table {
	var all []table
	for _, s := range r.steps {
		t := table{title: "Plans (" + s.name + ")", command: s.command, head: []string{"plan", "plan, us", "beside it, us"}}
		for _, m := range benchmark.FindAllStringSubmatch(s.log, -1) {
			line := []string{m[1], "", ""}
			f := strings.Fields(m[2])
			for i := 0; i+1 < len(f); i += 2 {
				switch unit, name, _ := strings.Cut(f[i+1], "/"); {
				case unit != "us":
				case name == "plan":
					line[1] = f[i]
				case name == "native":
					line[2] = f[i]
				default: // the algorithm that the library has chosen
					line[2] = f[i] + " " + name
				}
			}
			t.lines = append(t.lines, line)
		}
		if len(t.lines) > 0 {
			all = append(all, t)
		}
	}
	return all
}
