package main

import (
	"strings"
	"testing"
)

// The tables of this tree have what everybody looks for first.
func TestTables(t *testing.T) {
	for _, of := range []struct {
		name  string
		table func(string) (string, error)
		rows  []string
	}{
		{"Go", goTables, []string{
			"| `Join` | Join makes ", "| `Handle.Dispatch` | ", "| `Group.AllReduce` | ", "`ErrTimeout`",
		}},
		{"C", cTables, []string{
			"## Communicators\n", "| `weft_comm_get` | ", "| `weft_ep_dispatch` | ", "| `weft_all_reduce` | ",
		}},
		{"Python", pythonTables, []string{
			"| `Communicator.join(*, engine, gpu, deadline, huge_pages, log)` | Joins by ",
			"| `Handle.dispatch(rows, topk, weights, ",
			"| `Layout` | The order in which a rank receives rows: `expert_major`, `expert_packed`, ",
			"| `all_reduce(group, x, op)` | ",
			"| `Buffer.low_latency_dispatch(",
		}},
	} {
		text, err := of.table("../..")
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range of.rows {
			if !strings.Contains(text, row) {
				t.Errorf("%s: no row begins %q", of.name, row)
			}
		}
		if strings.Contains(text, "|  |\n") {
			t.Errorf("%s: a row says nothing", of.name)
		}
	}
}

func TestSignature(t *testing.T) {
	const source = `def weave(
        self, warp: dict[str, int], weft: str = "a, b)", *, tight: bool = (1, 2)[0]
    ) -> tuple[int, ...]:
        """Weaves ` + "``weft``" + ` into :meth:` + "`warp`" + `, 1.5 times.

        More."""
`
	arguments, says := signature(source)
	if arguments != "(warp, weft, *, tight)" || says != "Weaves `weft` into `warp`, 1.5 times" {
		t.Errorf("%s, %q", arguments, says)
	}
}
