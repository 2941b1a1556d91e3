// Package report draws benchmark records as one HTML file that needs nothing else:
// styles and plots are inside, there are no scripts, and nothing is fetched. It
// follows the reader's light or dark setting.
package report
