package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/retrip/retrip/examples/payments/internal/contract"
	"github.com/retrip/retrip/examples/payments/internal/ledger"
)

// writeAnswer writes an outcome, stored or new: the same bytes both times.
func writeAnswer(w http.ResponseWriter, answer ledger.Answer) {
	mediaType := "application/json"
	if answer.Status >= http.StatusBadRequest {
		mediaType = contract.ProblemMediaType
	}
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(answer.Body)))
	w.WriteHeader(answer.Status)
	_, _ = w.Write(answer.Body) // the outcome stands, whether or not the client is there to hear it
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	writeAnswer(w, ledger.Answer{Status: status, Body: encode(v)})
}

func problemAnswer(problemType string, status int, title, detail string) ledger.Answer {
	return ledger.Answer{Status: status, Body: encode(contract.Problem{
		Type: problemType, Title: title, Status: status, Detail: detail,
	})}
}

func writeProblem(w http.ResponseWriter, problemType string, status int, title, detail string) {
	writeAnswer(w, problemAnswer(problemType, status, title, detail))
}

func writeInvalid(w http.ResponseWriter, err error) {
	status, detail := http.StatusBadRequest, ""
	if e := (*invalidError)(nil); errors.As(err, &e) {
		status, detail = e.status, e.detail
	}
	writeProblem(w, contract.ProblemInvalid, status, "The request cannot be understood", detail)
}

// comeBack is the wait that is asked for, in seconds. It is the shortest that
// Retry-After can say, because most operations are done long before; where an
// owner is gone, a repeat is told so again until its lease has lapsed.
const comeBack = "1"

func writeInProgress(w http.ResponseWriter) {
	w.Header().Set("Retry-After", comeBack)
	writeProblem(w, contract.ProblemInProgress, http.StatusConflict, "An operation with this key is in progress",
		"Nothing was done by this request. Repeat it with the same key.")
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // the contract's types cannot fail
		panic(fmt.Sprintf("server: %v", err))
	}
	return append(b, '\n')
}
