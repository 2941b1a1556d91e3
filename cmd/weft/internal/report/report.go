package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
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

// Table is one more table of a report. Of its rows so many were checked in the run, and so many of
// those were wrong.
type Table struct {
	Title, Note    string
	Head           []Cell
	Rows           [][]Cell
	Checked, Wrong int
}

// Cell is one field of a table. Its class is one of the style sheet: n for numbers, good, bad,
// soft.
type Cell struct{ Text, Class string }

//go:embed report.html
var page string

var pageTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"number": func(v float64) string { return fmt.Sprintf("%.4g", v) },
	"size":   func(n int64) string { return measure.Size(n) },
}).Parse(page))

// Write writes the report as one HTML page.
func Write(w io.Writer, r Report) error {
	type figure struct {
		Title string
		SVG   template.HTML
	}
	data := struct {
		Report
		Figures []figure
		Tables  []Table
		Checked int
		Wrong   int
	}{Report: r, Checked: len(r.Records)}
	all := plots(r.Records)
	if r.GPUs != nil {
		all = append(all, r.GPUs.plots()...)
		data.Tables = r.GPUs.tables()
	}
	for _, p := range all {
		if svg := p.SVG(); svg != "" {
			// SVG escapes every text that it is given.
			data.Figures = append(data.Figures, figure{p.Title, template.HTML(svg)})
		}
	}
	for _, rec := range r.Records {
		if !rec.Verified {
			data.Wrong++
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
