package doctor

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// lineWidth is about how long a line of the table is, at most.
const lineWidth = 110

// Table prints findings for a person: a mark, the name, the value, the meaning. A long meaning goes on in lines
// below. The verdict is the last line.
func Table(w io.Writer, findings []Finding, v Verdict, color bool) error {
	b := bufio.NewWriter(w)
	width := 0
	for _, f := range findings {
		width = max(width, len(f.Name))
	}
	paint := func(code, text string) string {
		if !color {
			return text
		}
		return "\x1b[" + code + "m" + text + "\x1b[0m"
	}
	marks := map[Grade][2]string{Good: {"ok", "32"}, Note: {"--", "33"}, Bad: {"!!", "31"}}
	for _, f := range findings {
		mark, indent := marks[f.Grade], 6+width
		lines := wrap(f.Value+" - "+f.Meaning, lineWidth-indent)
		first, soft := lines[0], ""
		if value := f.Value + " "; strings.HasPrefix(first, value) {
			first, soft = value, first[len(value):]
		}
		fmt.Fprintf(b, "%s  %-*s  %s%s\n", paint(mark[1], mark[0]), width, f.Name, first, paint("2", soft))
		for _, more := range lines[1:] {
			fmt.Fprintf(b, "%*s%s\n", indent, "", paint("2", more))
		}
	}
	mark := marks[Good]
	if !v.Ready {
		mark = marks[Bad]
	}
	fmt.Fprintf(b, "\n%s\n", paint(mark[1], v.Text))
	return b.Flush()
}

// wrap cuts text into lines at spaces.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.SplitSeq(text, " ") {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) > width:
			lines, line = append(lines, line), word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}

// JSON prints the machine and the verdict as one object.
func JSON(w io.Writer, m Machine, v Verdict) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(struct {
		Machine
		Verdict
	}{m, v})
}
