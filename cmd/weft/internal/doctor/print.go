package doctor

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
)

// Table prints findings for a person: a mark, the name, the value, the meaning.
func Table(w io.Writer, findings []Finding, color bool) error {
	b := bufio.NewWriter(w)
	width := 0
	for _, f := range findings {
		width = max(width, len(f.Name))
	}
	marks := map[Grade][2]string{Good: {"ok", "32"}, Note: {"--", "33"}, Bad: {"!!", "31"}}
	for _, f := range findings {
		mark := marks[f.Grade]
		open, soft, end := "", "", ""
		if color {
			open, soft, end = "\x1b["+mark[1]+"m", "\x1b[2m", "\x1b[0m"
		}
		fmt.Fprintf(b, "%s%s%s  %-*s  %s %s- %s%s\n", open, mark[0], end, width, f.Name, f.Value, soft, f.Meaning, end)
	}
	return b.Flush()
}

// JSON prints the machine as one object.
func JSON(w io.Writer, m Machine) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(m)
}
