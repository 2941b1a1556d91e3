package launch

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// Kind names an event.
type Kind string

// The events of a job, in the order in which a rank can see them.
const (
	Started Kind = "start"   // a rank runs: pid, cpus
	Output  Kind = "output"  // a rank wrote a line: stream, line
	Exited  Kind = "exit"    // a rank ended and its output is complete: code or signal, seconds
	Failed  Kind = "failure" // which rank failed first: code or signal, message
	Notice  Kind = "notice"  // the launcher did something: message
	Ended   Kind = "end"     // the job has ended: exit code, seconds, message
)

// Event is one thing that happened, and one line of --json output.
type Event struct {
	Kind    Kind      `json:"event"`
	Time    time.Time `json:"time"`
	Rank    int       `json:"rank"` // -1 is the job
	PID     int       `json:"pid,omitempty"`
	CPUs    string    `json:"cpus,omitempty"`    // pinned to, kernel list format; empty is not pinned
	Stream  string    `json:"stream,omitempty"`  // stdout or stderr
	Line    string    `json:"line,omitempty"`    // without the line end
	Code    int       `json:"code"`              // exit status; 128 plus the number for a signal
	Signal  string    `json:"signal,omitempty"`  // SIGKILL, ...
	Seconds float64   `json:"seconds,omitempty"` // since the rank, or the job, started
	Message string    `json:"message,omitempty"`
}

type jsonSink struct {
	w   *bufio.Writer
	enc *json.Encoder
}

// JSON writes each event as one line of JSON to w.
func JSON(w io.Writer) Sink {
	b := bufio.NewWriter(w)
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	return &jsonSink{w: b, enc: enc}
}

func (s *jsonSink) Put(e Event) error { return s.enc.Encode(e) }
func (s *jsonSink) Flush() error      { return s.w.Flush() }

// TextOptions shape the output for a person.
type TextOptions struct {
	Size     int  // ranks, for the width of the prefix
	NoPrefix bool // lines exactly as the ranks wrote them
	Color    bool
}

type textSink struct {
	out, err *bufio.Writer
	last     *bufio.Writer
	opt      TextOptions
	width    int
}

// Text writes ranks' lines, prefixed with "[rank] ", to the stream that they came from, and the
// launcher's messages to err.
func Text(out, err io.Writer, opt TextOptions) Sink {
	return &textSink{
		out: bufio.NewWriter(out), err: bufio.NewWriter(err), opt: opt,
		width: len(fmt.Sprint(max(opt.Size-1, 0))),
	}
}

// palette has no red: that is for failures.
var palette = []string{"36", "33", "32", "35", "34", "96", "93", "92", "95", "94"}

func (s *textSink) Put(e Event) error {
	switch e.Kind {
	case Output:
		w := s.out
		if e.Stream == "stderr" {
			w = s.err
		}
		line := e.Line
		if s.opt.Color {
			line = lastOverwrite(line)
		}
		return s.line(w, s.prefix(e.Rank), line)
	case Failed:
		return s.line(s.err, s.paint("31", "weft: "), e.Message)
	case Notice:
		return s.line(s.err, s.paint("1", "weft: "), e.Message)
	case Ended:
		if e.Message != "" {
			return s.line(s.err, s.paint("31", "weft: "), e.Message)
		}
	}
	return nil
}

// line keeps the order of the two streams where they end in one terminal, by
// flushing one before writing to the other.
func (s *textSink) line(w *bufio.Writer, prefix, text string) error {
	if s.last != nil && s.last != w {
		if err := s.last.Flush(); err != nil {
			return err
		}
	}
	s.last = w
	_, err := fmt.Fprintf(w, "%s%s\n", prefix, text)
	return err
}

func (s *textSink) prefix(rank int) string {
	if s.opt.NoPrefix {
		return ""
	}
	return s.paint(palette[rank%len(palette)], fmt.Sprintf("[%*d] ", s.width, rank))
}

func (s *textSink) paint(code, text string) string {
	if !s.opt.Color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s *textSink) Flush() error {
	if s.last == nil {
		return nil
	}
	return s.last.Flush()
}

// lastOverwrite drops what a carriage return would have overwritten on a terminal:
// a progress bar shows its final state and leaves the prefix alone.
func lastOverwrite(line string) string {
	line = strings.TrimRight(line, "\r")
	return line[strings.LastIndexByte(line, '\r')+1:]
}
