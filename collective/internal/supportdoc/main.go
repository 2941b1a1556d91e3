// Command supportdoc writes the table of what collectives support, by the rules that refuse the rest and the
// algorithms that the engines have.
package main

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/weftgo/weft"
	"github.com/weftgo/weft/collective"
	"github.com/weftgo/weft/collective/spec"
)

//go:generate go run . -o ../../../docs/guides/collectives-support.md

func main() {
	out := flag.String("o", "docs/guides/collectives-support.md", "the file to write")
	flag.Parse()
	if err := os.WriteFile(*out, []byte(page()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "supportdoc:", err)
		os.Exit(1)
	}
}

// heading is what stands above the tables.
//
//go:embed support.md
var heading string

// multicast stands above the table of algorithms by multicast.
//
//go:embed multicast.md
var multicast string

// engines are the columns of the first table.
var engines = [...]struct {
	name, elsewhere string
	algorithms      []collective.Algorithm
}{
	{"the host", "join a communicator on GPUs for it", collective.Algorithms()},
	{"GPUs", "join a communicator of the host's for it", collective.GPUAlgorithms()},
}

// notes are the reasons for refusals, by their numbers.
type notes []string

func (n *notes) refused(because string) string {
	i := slices.Index(*n, because)
	if i < 0 {
		i = len(*n)
		*n = append(*n, because)
	}
	return fmt.Sprintf("refused (%d)", i+1)
}

func page() string {
	var b strings.Builder
	var because notes
	b.WriteString(heading)
	b.WriteString("\n## Operations\n\n| operation | on the host | on GPUs |\n|---|---|---|\n")
	for k := range spec.Collectives {
		fmt.Fprintf(&b, "| %v |", k)
		for _, e := range engines {
			says := "yes"
			if !anyFits(e.algorithms, spec.Request{Collective: k, DType: weft.Float32}) {
				says = because.refused("there is no algorithm on " + e.name + "; " + e.elsewhere)
			}
			fmt.Fprintf(&b, " %s |", says)
		}
		b.WriteString("\n")
	}
	b.WriteString("| send, receive, batch |" + strings.Repeat(" yes |", len(engines)))
	b.WriteString("\n\n## Reductions\n\n| type |")
	for op := weft.Sum; op.Valid(); op++ {
		fmt.Fprintf(&b, " %v |", op)
	}
	b.WriteString(" scalar of a premulsum |\n|---|" + strings.Repeat("---|", int(weft.PreMulSum)+2) + "\n")
	for t := weft.BFloat16; t.Size() > 0; t++ {
		fmt.Fprintf(&b, "| %v |", t)
		for op := weft.Sum; op.Valid(); op++ {
			fmt.Fprintf(&b, " %s |", reduction(&because, op, t))
		}
		scalar := "-"
		if spec.Reducible(spec.AllReduce, weft.PreMulSum, t) == nil {
			scalar = spec.ScalarType(t).String()
		}
		fmt.Fprintf(&b, " %s |\n", scalar)
	}
	b.WriteString("\nRefused, in the words of the error behind the operation's name:\n\n")
	for i, n := range because {
		fmt.Fprintf(&b, "%d. %s\n", i+1, n)
	}
	b.WriteString("\n" + multicast + "\n| algorithm | operands in windows | types | runs |\n|---|---|---|---|\n")
	for _, a := range collective.GPUAlgorithms() {
		if a.Needs&spec.Multicast == 0 {
			continue
		}
		runs := "where it costs least"
		if a.OptIn() {
			runs = "where a call or a group names it: it has bits of its own"
		}
		fmt.Fprintf(&b, "| %s | %v | %s | %s |\n", a.Name, a.Needs&^spec.Multicast, typesOf(a), runs)
	}
	return b.String()
}

// typesOf says which types an algorithm takes, and how it reduces them.
func typesOf(a collective.Algorithm) string {
	if !a.Collective.Reduces() {
		return "all"
	}
	var all []string
	for op := weft.Sum; op.Valid(); op++ {
		var types []string
		for t := weft.BFloat16; t.Size() > 0; t++ {
			if a.Fits(spec.Request{Collective: a.Collective, Op: op, DType: t, Windows: a.Needs}) {
				types = append(types, t.String())
			}
		}
		if len(types) > 0 {
			all = append(all, op.String()+" of "+strings.Join(types, ", "))
		}
	}
	return strings.Join(all, "; ")
}

// reduction says whether all operations that reduce, on both engines, take a type so.
func reduction(because *notes, op weft.Op, t weft.DType) string {
	says := ""
	for k := range spec.Collectives {
		if !k.Reduces() {
			continue
		}
		cell := "yes"
		if err := spec.Reducible(k, op, t); err != nil {
			_, why, _ := strings.Cut(err.Error(), k.String()+": ")
			cell = because.refused(why)
		}
		for _, e := range engines {
			q := spec.Request{Collective: k, Op: op, DType: t}
			if fits := anyFits(e.algorithms, q); cell == "yes" && !fits && anyFits(e.algorithms, without(q)) {
				cell = because.refused(fmt.Sprintf("no algorithm on %s takes %v of %v", e.name, op, t))
			}
		}
		if says != "" && says != cell {
			cell = says + "; " + k.String() + ": " + cell
		}
		says = cell
	}
	return says
}

// without is the request of a type that every reduction takes.
func without(q spec.Request) spec.Request {
	q.Op, q.DType = weft.Sum, weft.Float32
	return q
}

// anyFits says whether some algorithm takes a request of every size.
func anyFits(algorithms []collective.Algorithm, q spec.Request) bool {
	for _, ranks := range []int{2, 3, 8} {
		for _, count := range []int{0, 1, 7, 1 << 20, 1<<31 + 1} {
			q.Ranks, q.Slot, q.Count, q.Bytes = ranks, 1<<20, count, count*q.DType.Size()
			if !slices.ContainsFunc(algorithms, func(a collective.Algorithm) bool { return a.Fits(q) }) {
				return false
			}
		}
	}
	return true
}
