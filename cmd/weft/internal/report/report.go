package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"

	"github.com/weftgo/weft/cmd/weft/internal/measure"
)

// Fact is one line about the machine or the run.
type Fact struct{ Name, Value string }

// Report holds the results of one benchmark run.
type Report struct {
	Title   string
	When    time.Time
	Command string // as the user typed it
	Facts   []Fact // the machine and the versions
	Records []measure.Record
	GPUs    *GPUs // nil: nothing of them
}

//go:embed report.html
var page string

var pageTemplate = template.Must(template.New("report").Parse(page))

// Write writes the report as one HTML page.
func Write(w io.Writer, r Report) error {
	type figure struct {
		Plot
		Drawing, Entries template.HTML
	}
	data := struct {
		Report
		Verdict []string
		Figures []figure
		Tables  []Table
		Checked int
		Wrong   int
	}{Report: r}
	all := plots(r.Records)
	if len(r.Records) > 0 {
		data.Verdict = measure.Verdict(r.Records)[1:]
		data.Tables = append(data.Tables, ofRecords(r.Records)...)
	}
	if r.GPUs != nil {
		all = append(all, r.GPUs.plots()...)
		data.Tables = append(data.Tables, r.GPUs.tables()...)
	}
	colours := palette{}
	for _, p := range all {
		if svg := p.SVG(colours); svg != "" {
			// SVG and Legend escape every text that they are given.
			data.Figures = append(data.Figures, figure{p, template.HTML(svg), template.HTML(p.Legend(colours))})
		}
	}
	for _, t := range data.Tables {
		data.Checked += t.Checked
		data.Wrong += t.Wrong
	}
	if err := pageTemplate.Execute(w, data); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// sentences joins those that are not empty.
func sentences(all ...string) string {
	var said []string
	for _, s := range all {
		if s != "" {
			said = append(said, s)
		}
	}
	return strings.Join(said, " ")
}
