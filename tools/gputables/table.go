package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// table is one of a page: rows of cells below a heading and what has made it.
type table struct {
	title, command string
	head           []string
	lines          [][]string
	missed         []string // targets
}

func (t table) String() string {
	var b strings.Builder
	head := strings.Join(t.head, " | ") // of which the first may be several
	fmt.Fprintf(&b, "\n## %s\n\n`%s`\n\n| %s |\n|%s\n", t.title, t.command, head,
		strings.Repeat("---|", 1+strings.Count(head, "|")))
	for _, l := range t.lines {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(l, " | "))
	}
	if len(t.missed) > 0 {
		fmt.Fprintf(&b, "\nMissed targets: %s.\n", strings.Join(t.missed, "; "))
	}
	return b.String()
}

// pivot makes a line of each label, in the order in which they come, with a cell for each column.
type pivot[C cmp.Ordered] struct {
	labels []string
	cells  map[string]map[C]string
	seen   map[C]bool
}

func newPivot[C cmp.Ordered]() *pivot[C] {
	return &pivot[C]{cells: map[string]map[C]string{}, seen: map[C]bool{}}
}

// set fills a cell of the line with these labels, which " | " separates.
func (p *pivot[C]) set(label string, column C, cell string) {
	if p.cells[label] == nil {
		p.labels, p.cells[label] = append(p.labels, label), map[C]string{}
	}
	p.cells[label][column], p.seen[column] = cell, true
}

// table has the columns in order, each below its name.
func (p *pivot[C]) table(title, command, labels string, name func(C) string) table {
	columns := slices.Sorted(maps.Keys(p.seen))
	t := table{title: title, command: command, head: []string{labels}}
	for _, c := range columns {
		t.head = append(t.head, name(c))
	}
	for _, l := range p.labels {
		line := []string{l}
		for _, c := range columns {
			line = append(line, p.cells[l][c])
		}
		t.lines = append(t.lines, line)
	}
	return t
}

// size is a number of bytes as nccl-tests would ask for it.
func size(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	x, unit := float64(n)/(1<<10), "KB"
	for _, larger := range []string{"MB", "GB"} {
		if x >= 1<<10 {
			x, unit = x/(1<<10), larger
		}
	}
	return strconv.FormatFloat(math.Round(x*10)/10, 'f', -1, 64) + " " + unit
}
