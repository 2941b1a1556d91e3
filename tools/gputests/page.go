package main

import (
	"bytes"
	"cmp"
	_ "embed" // the heading
	"fmt"
	"slices"
	"strings"
)

//go:embed heading.md
var heading string

// page is the page of a record: the newest result of each part on each kind of machine, then all of
// them, the newest first.
func page(entries []entry) []byte {
	var b bytes.Buffer
	b.WriteString(heading)
	b.WriteString("\n## Newest result of each part\n\nA part has failed where one of its steps failed, of the newest " +
		"build, or of the newest day if no build is known.\n\n")
	machines, parts := distinct(entries, func(e entry) string { return e.GPUs }), distinct(entries,
		func(e entry) string { return e.Part })
	b.WriteString("| part |")
	for _, m := range machines {
		fmt.Fprintf(&b, " %s |", m)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(machines)) + "\n")
	for _, p := range parts {
		fmt.Fprintf(&b, "| %s |", p)
		for _, m := range machines {
			b.WriteString(" " + newest(entries, p, m) + " |")
		}
		b.WriteString("\n")
	}
	b.WriteString("\n## All results\n\nA part that failed and was mended says in its note whether it has " +
		"passed since.\n\n")
	b.WriteString("| date | GPUs | driver, CUDA | part | what | result |\n|---|---|---|---|---|---|\n")
	ordered := slices.Clone(entries)
	slices.Reverse(ordered)
	slices.SortStableFunc(ordered, func(x, y entry) int { return cmp.Compare(y.Date, x.Date) })
	for _, e := range ordered {
		what := e.What
		if e.Build != "" {
			what = strings.TrimPrefix(what+", at "+e.Build, ", ")
		}
		fmt.Fprintf(&b, "| %s | %s | %s, %s | %s | %s | %s |\n", e.Date, e.GPUs, e.Driver, e.CUDA, e.Part,
			cell(what), cell(e.outcome()))
	}
	return b.Bytes()
}

// outcome is the result in words.
func (e entry) outcome() string {
	text := e.Result
	if e.Passed > 0 {
		text += fmt.Sprintf(", %d tests", e.Passed)
	}
	if e.Seconds > 0 {
		text += fmt.Sprintf(", %d s", e.Seconds)
	}
	if e.Note != "" {
		text += "; " + e.Note
	}
	return text
}

// newest is the result of a part on a kind of machine: failed where any record of the newest build is, or of the newest
// day if no build is known.
func newest(entries []entry, part, gpus string) string {
	last := entry{}
	for _, e := range entries {
		if e.Part == part && e.GPUs == gpus && e.Date >= last.Date {
			last = e
		}
	}
	if last.Date == "" {
		return "-"
	}
	result := last.Result
	for _, e := range entries {
		same := e.Build == last.Build && (e.Build != "" || e.Date == last.Date)
		if e.Part == part && e.GPUs == gpus && same && e.Result == "failed" {
			result = e.Result
		}
	}
	return result + " " + last.Date
}

func distinct(entries []entry, key func(entry) string) []string {
	var all []string
	for _, e := range entries {
		if k := key(e); !slices.Contains(all, k) {
			all = append(all, k)
		}
	}
	slices.Sort(all)
	return all
}

// cell keeps a text from ending its cell of a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "\n", " "), "|", `\|`)
}
