package retrip_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// The tests below are the rows of OUTCOMES.md in their order, each under the row's name.

const (
	outcomeRetried  = "1 answered/- retry/transient "
	outcomeSuccess  = "2 answered/- return/success"
	outcomeRetriedE = "1 unknown/eof retry/transient "
	outcomeSuccessU = "2 answered/- return/success earlier_unknown"
)

// outcomeMethods make a row of each method.
func outcomeMethods(name string, set func(x *outcomeRun), methods ...string) []outcomeRow {
	rows := make([]outcomeRow, 0, len(methods))
	for _, m := range methods {
		rows = append(rows, outcomeRow{name + ", " + m, func(x *outcomeRun) {
			x.as(m)
			set(x)
		}})
	}
	return rows
}

func TestOutcome200And101(t *testing.T) {
	outcomeRows(t, outcomeMethods("200", func(x *outcomeRun) {
		x.plays = []httptestx.Play{httptestx.OK("done")}
		x.want("1 answered/- return/success")
		x.gives(200, 1)
		x.answer = "done"
	}, "GET", "PUT", "DELETE", "POST", "POST+key", "PATCH")...)
	outcomeRows(t, outcomeRow{"101", func(x *outcomeRun) {
		x.upgrade()
		x.plays = []httptestx.Play{{
			httptestx.ReadHead,
			httptestx.Write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"),
			httptestx.Silence,
		}}
		x.want("1 answered/- return/success")
		x.gives(101, 1)
		x.check = func(resp *http.Response) {
			_, ok := resp.Body.(io.ReadWriteCloser)
			assert.True(x.t, ok, "the connection of a 101 is there to write to; got %T", resp.Body)
		}
	}})
}

func TestOutcomeRedirectsAndNotModified(t *testing.T) {
	var rows []outcomeRow
	for _, status := range []int{301, 304} {
		rows = append(rows, outcomeMethods(http.StatusText(status), func(x *outcomeRun) {
			x.plays = []httptestx.Play{httptestx.Status(status, "", "Location: /elsewhere")}
			x.want("1 answered/- return/success")
			x.gives(status, 1)
		}, "GET", "POST")...)
	}
	outcomeRows(t, rows...)
}

func TestOutcomeStatusOutsideTheSet(t *testing.T) {
	var rows []outcomeRow
	for _, status := range []int{404, 500} {
		rows = append(rows, outcomeMethods(http.StatusText(status), func(x *outcomeRun) {
			x.plays = []httptestx.Play{httptestx.Status(status, "why")}
			x.want("1 answered/- return/not_transient")
			x.gives(status, 1)
			x.answer = "why"
		}, "GET", "PUT", "DELETE", "POST", "POST+key", "PATCH", "LOCK")...)
	}
	outcomeRows(t, rows...)
}

func TestOutcomeTransientStatusIsRepeatedByMethodOrKey(t *testing.T) {
	var rows []outcomeRow
	for _, status := range []int{429, 502, 503, 504} {
		rows = append(rows, outcomeMethods(http.StatusText(status), func(x *outcomeRun) {
			x.plays = []httptestx.Play{httptestx.Status(status, "busy"), httptestx.OK("done")}
			x.want(outcomeRetried+x.permit(), outcomeSuccess)
			x.gives(200, 2)
			x.answer = "done"
		}, "GET", "PUT", "DELETE", "POST+key")...)
	}
	outcomeRows(t, rows...)
	outcomeRows(t, outcomeMethods("the last attempt", func(x *outcomeRun) {
		x.plays = []httptestx.Play{httptestx.Status(503, "busy")}
		x.want(outcomeRetried+x.permit(), "2 answered/- retry/transient "+x.permit(), "3 answered/- attempts_exhausted/attempts_exhausted")
		x.gives(503, 3)
		x.answer = "busy"
	}, "GET", "PUT", "DELETE", "POST+key")...)
}

func TestOutcomeTransientStatusWithoutAPermit(t *testing.T) {
	busy := func(x *outcomeRun) {
		x.plays = []httptestx.Play{httptestx.Status(503, "busy")}
		x.want("1 answered/- return/not_repeatable")
		x.gives(503, 1)
		x.answer = "busy"
	}
	outcomeRows(t, outcomeMethods("503", busy, "POST", "PATCH", "LOCK")...)
	outcomeRows(t, outcomeMethods("503 to an Upgrade", func(x *outcomeRun) { busy(x); x.upgrade() }, "GET", "PUT", "POST+key")...)
	outcomeRows(t, outcomeMethods("503 to an Upgrade declared idempotent", func(x *outcomeRun) {
		busy(x)
		x.upgrade()
		x.with(retrip.WithIdempotent(true))
	}, "GET")...)
	outcomeRows(t, outcomeMethods("503 forbidden", func(x *outcomeRun) {
		busy(x)
		x.with(retrip.WithIdempotent(false), retrip.WithUnprocessedStatus(503))
		x.want("1 answered/- return/forbidden")
	}, "GET", "PUT", "DELETE", "POST", "POST+key")...)
}

func TestOutcomeUnprocessedStatus(t *testing.T) {
	outcomeRows(t, outcomeMethods("503 in the set", func(x *outcomeRun) {
		x.with(retrip.WithUnprocessedStatus(503))
		x.plays = []httptestx.Play{httptestx.Status(503, "busy"), httptestx.OK("done")}
		x.want(outcomeRetried+"unprocessed_status", outcomeSuccess)
		x.gives(200, 2)
	}, "POST", "PATCH", "GET", "POST+key")...)
	outcomeRows(t, outcomeMethods("425 in it, not in the retry set", func(x *outcomeRun) {
		x.with(retrip.WithUnprocessedStatus(425))
		x.plays = []httptestx.Play{httptestx.Status(425, "early")}
		x.want("1 answered/- return/not_transient")
		x.gives(425, 1)
	}, "GET", "POST")...)
}

func TestOutcomeVerdicts(t *testing.T) {
	verdict := func(v retrip.Verdict) retrip.Option {
		return retrip.WithRetryIf(func(a retrip.Attempt) retrip.Verdict {
			if a.Number == 1 {
				return v
			}
			return retrip.VerdictDefault
		})
	}
	for _, status := range []int{200, 403} {
		outcomeRows(t, outcomeRow{"GET " + http.StatusText(status) + " with VerdictRetry", func(x *outcomeRun) {
			x.with(verdict(retrip.VerdictRetry))
			x.plays = []httptestx.Play{httptestx.Status(status, "first"), httptestx.OK("done")}
			x.want("1 answered/- retry/policy idempotent_method", outcomeSuccess)
			x.gives(200, 2)
			x.answer = "done"
		}})
	}
	outcomeRows(
		t,
		outcomeRow{"POST 403 with VerdictRetry", func(x *outcomeRun) {
			x.as("POST")
			x.with(verdict(retrip.VerdictRetry))
			x.plays = []httptestx.Play{httptestx.Status(403, "no")}
			x.want("1 answered/- return/not_repeatable")
			x.gives(403, 1)
		}},
		outcomeRow{"GET 429 with VerdictStop", func(x *outcomeRun) {
			x.with(verdict(retrip.VerdictStop))
			x.plays = []httptestx.Play{httptestx.Status(429, "slow down")}
			x.want("1 answered/- return/policy")
			x.gives(429, 1)
			x.answer = "slow down"
		}},
		outcomeRow{"GET 200 with VerdictStop", func(x *outcomeRun) {
			x.with(verdict(retrip.VerdictStop))
			x.want("1 answered/- return/success")
			x.gives(200, 1)
		}},
		outcomeRow{"GET 503 with VerdictRetry is transient already", func(x *outcomeRun) {
			x.with(verdict(retrip.VerdictRetry))
			x.plays = []httptestx.Play{httptestx.Status(503, "busy"), httptestx.OK("done")}
			x.want(outcomeRetried+"idempotent_method", outcomeSuccess)
			x.gives(200, 2)
		}},
	)
}

func TestOutcomeTransientAnswerThatCannotBeRepeatedNow(t *testing.T) {
	busy := func(x *outcomeRun, header ...string) {
		x.plays = []httptestx.Play{httptestx.Status(503, "busy", header...)}
		x.gives(503, 1)
		x.answer = "busy"
	}
	outcomeRows(
		t,
		outcomeRow{"hint over the cap", func(x *outcomeRun) {
			busy(x, "Retry-After: 61")
			x.want("1 answered/- return/retry_after_too_long")
			x.check = func(resp *http.Response) { assert.Equal(x.t, "61", resp.Header.Get("Retry-After")) }
		}},
		outcomeRow{"wait does not fit the caller's deadline", func(x *outcomeRun) {
			busy(x)
			ctx, cancel := context.WithTimeout(x.ctx, time.Hour)
			x.t.Cleanup(cancel)
			x.ctx = ctx
			x.with(retrip.WithBackoff(retrip.Constant(2 * time.Hour)))
			x.want("1 answered/- deadline_exceeded/deadline_exceeded")
		}},
		outcomeRow{"wait does not fit the total time-out", func(x *outcomeRun) {
			busy(x, "Retry-After: 30")
			x.with(retrip.WithTotalTimeout(20 * time.Second))
			x.want("1 answered/- deadline_exceeded/deadline_exceeded")
		}},
		outcomeRow{"the attempt after the wait does not fit", func(x *outcomeRun) {
			busy(x, "Retry-After: 10")
			x.with(retrip.WithTotalTimeout(20*time.Second), retrip.WithMinAttemptTime(15*time.Second))
			x.want("1 answered/- deadline_exceeded/deadline_exceeded")
		}},
		outcomeRow{"budget empty", func(x *outcomeRun) {
			busy(x)
			x.with(retrip.WithBudget(retrip.NewBudget(0, 0, 0)))
			x.want("1 answered/- budget_exhausted/budget_exhausted")
		}},
		outcomeRow{"gate refuses attempt 2", func(x *outcomeRun) {
			busy(x)
			x.bare = false
			var asked, done int
			x.with(retrip.WithGate(func(*http.Request) (func(error), error) {
				if asked++; asked > 1 {
					return nil, errOutcomeGate
				}
				return func(err error) { done++; assert.Error(x.t, err, "a 503 is a failure to the gate") }, nil
			}))
			x.then(func() { assert.Equal(x.t, []int{2, 1}, []int{asked, done}) })
			x.want("1 answered/- return/gate_closed")
			x.err = errOutcomeGate
		}},
	)
	outcomeRows(
		t,
		outcomeRow{"PUT, one-shot body read", func(x *outcomeRun) {
			x.as("PUT")
			busy(x)
			x.edit = func(req *http.Request) { req.GetBody = nil }
			x.want("1 answered/- return/body_not_replayable")
		}},
		outcomeRow{"PUT, GetBody fails", func(x *outcomeRun) {
			x.as("PUT")
			busy(x)
			x.edit = func(req *http.Request) { req.GetBody = func() (io.ReadCloser, error) { return nil, errOutcomeGetBody } }
			x.want("1 answered/- return/body_not_replayable")
			x.err = errOutcomeGetBody
		}},
		outcomeRow{"PUT, GetBody gives another length", func(x *outcomeRun) {
			x.as("PUT")
			busy(x)
			x.edit = func(req *http.Request) {
				req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("longer than promised")), nil }
			}
			x.want("1 answered/body return/body_failed")
		}},
	)
}

func TestOutcomeErrorAndNoBodyForAnotherAttempt(t *testing.T) {
	lost := func(x *outcomeRun) {
		x.as("PUT")
		x.plays = []httptestx.Play{{httptestx.ReadAll, httptestx.FIN}}
		x.heads, x.maybe = 1, true
		x.is = []error{io.EOF}
		x.want("1 unknown/eof return/body_not_replayable")
	}
	outcomeRows(
		t,
		outcomeRow{"PUT EOF, GetBody fails", func(x *outcomeRun) {
			lost(x)
			x.edit = func(req *http.Request) { req.GetBody = func() (io.ReadCloser, error) { return nil, errOutcomeGetBody } }
			x.is = append(x.is, errOutcomeGetBody)
			x.err = errOutcomeGetBody
		}},
		outcomeRow{"GET EOF, GetBody fails", func(x *outcomeRun) {
			lost(x)
			x.method, x.maybe = "GET", false
			x.edit = func(req *http.Request) { req.GetBody = func() (io.ReadCloser, error) { return nil, errOutcomeGetBody } }
			x.is = append(x.is, errOutcomeGetBody)
			x.err = errOutcomeGetBody
		}},
		outcomeRow{"GET EOF, gate refuses attempt 2", func(x *outcomeRun) {
			lost(x)
			x.method, x.maybe, x.body, x.bare = "GET", false, "", false
			asked := 0
			x.with(retrip.WithGate(func(*http.Request) (func(error), error) {
				if asked++; asked > 1 {
					return nil, errOutcomeGate
				}
				return func(error) {}, nil
			}))
			x.want("1 unknown/eof return/gate_closed")
			x.is, x.err, x.says = append(x.is, errOutcomeGate), errOutcomeGate, "gate"
		}},
		outcomeRow{"PUT EOF, one-shot body read", func(x *outcomeRun) {
			lost(x)
			x.edit = func(req *http.Request) { req.GetBody = nil }
		}},
	)
}

func TestOutcomeOperationThatEndsBeforeItsFirstAttempt(t *testing.T) {
	never := func(x *outcomeRun) {
		x.bare = false
		x.with(retrip.WithHook(func(context.Context, retrip.Event) {}))
	}
	outcomeRows(t, outcomeMethods("gate refuses attempt 1", func(x *outcomeRun) {
		never(x)
		x.with(retrip.WithGate(func(*http.Request) (func(error), error) { return nil, errOutcomeGate }))
		x.want("0 not_sent/gate return/gate_closed")
		x.is, x.err, x.says = []error{errOutcomeGate}, errOutcomeGate, "gate"
	}, "GET", "POST")...)
	outcomeRows(t, outcomeMethods("context canceled", func(x *outcomeRun) {
		ctx, cancel := context.WithCancel(x.ctx)
		cancel()
		x.ctx = ctx
		x.want("0 not_sent/canceled cancel/cancel")
		x.is, x.isNot = []error{context.Canceled}, []error{context.DeadlineExceeded}
	}, "GET", "POST")...)
	outcomeRows(t, outcomeMethods("req.Cancel closed", func(x *outcomeRun) {
		x.bare = false // the bare base may or may not look at it
		x.edit = func(req *http.Request) {
			gone := make(chan struct{})
			close(gone)
			req.Cancel = gone //nolint:staticcheck // http.Client.Timeout sets it
		}
		x.want("0 not_sent/canceled cancel/cancel")
		x.is = []error{context.Canceled}
	}, "GET", "POST")...)
	outcomeRows(t, outcomeMethods("deadline past", func(x *outcomeRun) {
		ctx, cancel := context.WithDeadline(x.ctx, time.Now().Add(-time.Second))
		x.t.Cleanup(cancel)
		x.ctx = ctx
		x.want("0 not_sent/deadline deadline_exceeded/deadline_exceeded")
		x.is, x.timeout = []error{context.DeadlineExceeded}, true
	}, "GET", "POST")...)
	outcomeRows(t, outcomeMethods("less than MinAttemptTime", func(x *outcomeRun) {
		never(x)
		ctx, cancel := context.WithTimeout(x.ctx, time.Hour)
		x.t.Cleanup(cancel)
		x.ctx = ctx
		x.with(retrip.WithMinAttemptTime(2 * time.Hour))
		x.want("0 not_sent/deadline deadline_exceeded/deadline_exceeded")
		x.is, x.timeout = []error{context.DeadlineExceeded}, true
	}, "GET", "POST")...)
}

func TestOutcomeOriginPauseThatCannotBeOutwaited(t *testing.T) {
	paused := func(x *outcomeRun, seconds string) {
		x.with(retrip.WithOriginPause(true))
		x.plays = []httptestx.Play{httptestx.Status(503, "busy", "Retry-After: "+seconds)}
		x.heads = 1 // the first operation's
		x.says = "the origin asked to be left alone"
		x.before = func(rt http.RoundTripper, url string) {
			req, err := http.NewRequestWithContext(x.t.Context(), http.MethodPost, url, http.NoBody)
			require.NoError(x.t, err)
			resp, err := rt.RoundTrip(req)
			require.NoError(x.t, err)
			require.NoError(x.t, resp.Body.Close())
		}
	}
	outcomeRows(t, outcomeMethods("the deadline comes first", func(x *outcomeRun) {
		paused(x, "30")
		ctx, cancel := context.WithTimeout(x.ctx, 20*time.Second)
		x.t.Cleanup(cancel)
		x.ctx = ctx
		x.want("0 not_sent/- deadline_exceeded/deadline_exceeded")
		x.is, x.timeout = []error{context.DeadlineExceeded}, true
	}, "GET", "POST")...)
	outcomeRows(t, outcomeMethods("longer than the cap", func(x *outcomeRun) {
		paused(x, "61")
		x.want("0 not_sent/- return/retry_after_too_long")
		x.isNot = []error{context.DeadlineExceeded}
	}, "GET", "POST")...)
}

func TestOutcomeBadOption(t *testing.T) {
	outcomeRows(t, outcomeMethods("under Override", func(x *outcomeRun) {
		x.bare = false
		x.ctx = retrip.Override(x.ctx, retrip.WithMaxAttempts(0))
		x.want()
		x.options, x.says = true, "WithMaxAttempts"
	}, "GET", "POST")...)
	for name, key := range map[string]string{"an empty key": "", "a key that is no header value": "a\nb"} {
		outcomeRows(t, outcomeMethods("the generator gives "+name, func(x *outcomeRun) {
			x.bare = false
			x.with(retrip.WithGeneratedKeys(func() string { return key }))
			x.want()
			x.options, x.says = true, "WithGeneratedKeys"
		}, "POST", "PATCH")...)
	}
}

// outcomeUnsent are the faults of a phase before the request, transient ones.
func outcomeUnsent() map[string]func(x *outcomeRun, fails int) error {
	dials := func(err error) func(*outcomeRun, int) error {
		return func(x *outcomeRun, fails int) error {
			x.failingDials(fails, err)
			return err
		}
	}
	return map[string]func(x *outcomeRun, fails int) error{
		"dial": dials(outcomeDialError()),
		"dns":  dials(outcomeDNSError(false)),
		"proxy": func(x *outcomeRun, fails int) error {
			x.failingDials(fails, outcomeDialError())
			dial := x.transport
			x.transport = func(std *http.Transport) {
				dial(std)
				// The origin is asked as a proxy for a host that does not exist.
				std.Proxy = func(req *http.Request) (*url.URL, error) { return &url.URL{Scheme: "http", Host: req.Host}, nil }
			}
			return syscall.ECONNREFUSED
		},
		"tls": func(x *outcomeRun, fails int) error {
			x.tls = true
			for range fails {
				x.plays = append(x.plays, httptestx.Play{httptestx.ReadHello, httptestx.FIN})
			}
			x.plays = append(x.plays, httptestx.OK("done"))
			return io.EOF
		},
	}
}

func TestOutcomeNotSentIsRepeatedWhateverTheMethod(t *testing.T) {
	for class, fault := range outcomeUnsent() {
		outcomeRows(t, outcomeMethods(class, func(x *outcomeRun) {
			x.is = []error{fault(x, 1)}
			x.want("1 not_sent/"+class+" retry/transient not_sent", outcomeSuccess)
			x.gives(200, 1)
		}, "GET", "PUT", "DELETE", "POST", "POST+key", "PATCH", "LOCK")...)
		outcomeRows(t, outcomeMethods(class+" forbidden", func(x *outcomeRun) {
			x.is = []error{fault(x, 1)}
			x.with(retrip.WithIdempotent(false))
			x.want("1 not_sent/"+class+" retry/transient not_sent", outcomeSuccess)
			x.gives(200, 1)
		}, "GET", "POST")...)
		outcomeRows(t, outcomeMethods(class+" of an Upgrade", func(x *outcomeRun) {
			x.is = []error{fault(x, 1)}
			x.upgrade()
			x.want("1 not_sent/"+class+" retry/transient not_sent", outcomeSuccess)
			x.gives(200, 1)
		}, "GET")...)
		outcomeRows(t, outcomeMethods(class+" the third time", func(x *outcomeRun) {
			x.is = []error{fault(x, 3)}
			x.want("1 not_sent/"+class+" retry/transient not_sent", "2 not_sent/"+class+" retry/transient not_sent",
				"3 not_sent/"+class+" attempts_exhausted/attempts_exhausted")
			x.says = "attempts_exhausted after 3 attempts"
		}, "GET", "POST")...)
		outcomeRows(t, outcomeMethods(class+" with MaxAttempts(1)", func(x *outcomeRun) {
			x.with(retrip.WithMaxAttempts(1))
			x.is = []error{fault(x, 1)}
			x.want("1 not_sent/" + class + " attempts_exhausted/attempts_exhausted")
			x.asBare = true
			if class == "dial" || class == "dns" {
				x.exact = x.is[0]
			}
		}, "GET", "POST")...)
	}
}

func TestOutcomePermanentFailureBeforeTheRequest(t *testing.T) {
	permanent := func(class string, set func(x *outcomeRun)) func(x *outcomeRun) {
		return func(x *outcomeRun) {
			set(x)
			x.want("1 not_sent/" + class + " return/not_transient")
			x.asBare = true
		}
	}
	for name, play := range map[string]httptestx.Play{
		"certificate of another name":     {httptestx.Present(httptestx.WrongName), httptestx.Handshake},
		"certificate that has expired":    {httptestx.Present(httptestx.Expired), httptestx.Handshake},
		"certificate of an unknown CA":    {httptestx.Present(httptestx.UnknownCA), httptestx.Handshake},
		"no TLS on the port":              {httptestx.ReadHello, httptestx.WriteRaw("HTTP/1.1 400 Bad Request\r\n\r\n"), httptestx.FIN},
		"TLS alert within the handshake ": {httptestx.Alert(40)},
	} {
		outcomeRows(t, outcomeMethods(name, permanent("tls", func(x *outcomeRun) {
			x.tls, x.plays = true, []httptestx.Play{play}
		}), "GET", "POST")...)
	}
	outcomeRows(t, outcomeMethods("NXDOMAIN", permanent("dns", func(x *outcomeRun) {
		x.failingDials(3, outcomeDNSError(true))
	}), "GET", "POST")...)
	outcomeRows(t, outcomeMethods("NXDOMAIN after a refused dial", func(x *outcomeRun) {
		answers := []error{outcomeDialError(), outcomeDNSError(true)}
		var dials atomic.Int32
		x.transport = func(std *http.Transport) {
			std.DialContext = func(context.Context, string, string) (net.Conn, error) { return nil, answers[dials.Add(1)-1] }
		}
		x.want("1 not_sent/dial retry/transient not_sent", "2 not_sent/dns return/not_transient")
		x.is = answers[1:]
		x.bare = false
	}, "GET", "POST")...)
}

func TestOutcomeLocalReject(t *testing.T) {
	rejects := map[string]func(req *http.Request){
		"bad header value": func(req *http.Request) { req.Header["X-Note"] = []string{"a\nb"} },
		"bad header name":  func(req *http.Request) { req.Header["X Note"] = []string{"a"} },
		"bad method":       func(req *http.Request) { req.Method = "BAD METHOD" },
		"no host":          func(req *http.Request) { req.URL.Host, req.Host = "", "" },
		"other scheme":     func(req *http.Request) { req.URL.Scheme = "foo" },
		"nil Header":       func(req *http.Request) { req.Header = nil },
		"nil URL":          func(req *http.Request) { req.URL = nil },
	}
	always := retrip.WithRetryIf(func(retrip.Attempt) retrip.Verdict { return retrip.VerdictRetry })
	for name, reject := range rejects {
		outcomeRows(t, outcomeMethods(name, func(x *outcomeRun) {
			x.edit = reject
			x.want("1 not_sent/other return/not_transient")
			x.asBare = true
		}, "GET", "POST", "POST+key")...)
		outcomeRows(t, outcomeMethods(name+", VerdictRetry", func(x *outcomeRun) {
			x.edit = reject
			x.with(always)
			x.want("1 not_sent/other return/not_transient")
			x.asBare = true
		}, "GET", "POST")...)
	}
	// The same from another base proves nothing: it may have sent the request before.
	outcomeRows(t, outcomeMethods("behind another base", func(x *outcomeRun) {
		x.edit = rejects["bad header value"]
		x.base = func(std http.RoundTripper) http.RoundTripper { return httptestx.RoundTripFunc(std.RoundTrip) }
		x.with(always)
		x.want("1 unknown/other return/not_transient")
		if x.asBare = x.method == "GET"; !x.asBare {
			x.maybe = true
		}
	}, "GET", "POST")...)
}

func TestOutcomeDialErrorOfABaseThatFiresNoGetConn(t *testing.T) {
	outcomeRows(t, outcomeMethods("dial", func(x *outcomeRun) {
		err := outcomeDialError()
		x.base = func(http.RoundTripper) http.RoundTripper { return outcomeFails(err) }
		x.want("1 unknown/dial check_state/not_repeatable")
		x.is, x.maybe = []error{err}, true
	}, "POST", "PATCH")...)
}

// outcomeCuts are the faults of a sent request.
var outcomeCuts = map[string]struct {
	play httptestx.Play
	is   error
}{
	"eof":      {httptestx.Play{httptestx.ReadAll, httptestx.FIN}, io.EOF},
	"reset":    {httptestx.Play{httptestx.ReadAll, httptestx.RST}, syscall.ECONNRESET},
	"protocol": {httptestx.Play{httptestx.ReadAll, httptestx.Write("HTTP/1.1 200 OK\r\nContent-"), httptestx.FIN}, nil},
}

func TestOutcomeCutConnectionIsRepeatedByMethodOrKey(t *testing.T) {
	for class, cut := range outcomeCuts {
		outcomeRows(t, outcomeMethods(class, func(x *outcomeRun) {
			x.plays = []httptestx.Play{cut.play, httptestx.OK("done")}
			x.want("1 unknown/"+class+" retry/transient "+x.permit(), outcomeSuccessU)
			x.gives(200, 2)
			x.maybe = !x.safe()
		}, "GET", "PUT", "DELETE", "POST+key")...)
		outcomeRows(t, outcomeMethods(class+", the last", func(x *outcomeRun) {
			x.plays = []httptestx.Play{cut.play}
			x.want("1 unknown/"+class+" retry/transient "+x.permit(),
				"2 unknown/"+class+" retry/transient "+x.permit()+" earlier_unknown",
				"3 unknown/"+class+" attempts_exhausted/attempts_exhausted earlier_unknown")
			x.heads, x.maybe = 3, !x.safe()
			if cut.is != nil {
				x.is = []error{cut.is}
			}
			x.says = "after 3 attempts"
		}, "GET", "PUT", "DELETE", "POST+key")...)
		outcomeRows(t, outcomeMethods(class+", MaxAttempts(1)", func(x *outcomeRun) {
			x.with(retrip.WithMaxAttempts(1))
			x.plays = []httptestx.Play{cut.play}
			x.want("1 unknown/" + class + " attempts_exhausted/attempts_exhausted")
			x.heads, x.maybe, x.asBare = 1, !x.safe(), x.safe()
			if class == "eof" && x.safe() {
				x.exact = io.EOF
			}
		}, "GET", "PUT")...)
	}
}

func TestOutcomePOSTEOF(t *testing.T) {
	lost := func(x *outcomeRun) {
		x.plays = []httptestx.Play{{httptestx.ReadAll, httptestx.FIN}, httptestx.OK("done")}
		x.heads, x.maybe, x.is = 1, true, []error{io.EOF}
		x.want("1 unknown/eof check_state/not_repeatable")
	}
	check := func(x *outcomeRun, state retrip.State, resp *http.Response, err error) {
		asked := 0
		x.with(retrip.WithStateCheck(func(_ context.Context, _ *http.Request, a retrip.Attempt) (retrip.State, *http.Response, error) {
			asked++
			assert.Equal(x.t, retrip.DeliveryUnknown, a.Delivery)
			assert.Equal(x.t, asked, a.Number)
			return state, resp, err
		}))
		if x.bare { // the check is not part of the bare base's run
			x.bare = false
			x.then(func() { assert.Equal(x.t, x.heads-strings.Count(strings.Join(x.events, " "), "success"), asked) })
		}
	}
	rows := outcomeMethods("no StateCheck", lost, "POST", "PATCH", "LOCK")
	rows = append(rows,
		outcomeRow{"applied with a response", func(x *outcomeRun) {
			x.as("POST")
			lost(x)
			x.bare = false
			x.with(retrip.WithStateCheck(func(context.Context, *http.Request, retrip.Attempt) (retrip.State, *http.Response, error) {
				return retrip.StateApplied, httptestx.Canned(nil, 201, "order 7731"), nil // its Request becomes the caller's
			}))
			x.want("1 unknown/eof check_state/success")
			x.gives(201, 1)
			x.answer, x.maybe = "order 7731", false
		}},
		outcomeRow{"not applied", func(x *outcomeRun) {
			x.as("POST")
			lost(x)
			check(x, retrip.StateNotApplied, nil, nil)
			x.want("1 unknown/eof retry/transient state_checked", outcomeSuccess)
			x.gives(200, 2)
			x.maybe = false
		}},
		outcomeRow{"not applied, on the last of one", func(x *outcomeRun) {
			x.as("POST")
			lost(x)
			check(x, retrip.StateNotApplied, nil, nil)
			x.with(retrip.WithMaxAttempts(1))
			x.want("1 unknown/eof attempts_exhausted/attempts_exhausted")
			x.maybe, x.exact = false, io.EOF
		}},
		outcomeRow{"not applied, on the last of three", func(x *outcomeRun) {
			x.as("POST")
			lost(x)
			x.plays = x.plays[:1]
			check(x, retrip.StateNotApplied, nil, nil)
			x.want("1 unknown/eof retry/transient state_checked", "2 unknown/eof retry/transient state_checked",
				"3 unknown/eof attempts_exhausted/attempts_exhausted")
			x.heads, x.maybe = 3, false
		}},
		outcomeRow{"unknown", func(x *outcomeRun) { x.as("POST"); lost(x); check(x, retrip.StateUnknown, nil, nil) }},
		outcomeRow{"applied without a response", func(x *outcomeRun) { x.as("POST"); lost(x); check(x, retrip.StateApplied, nil, nil) }},
		outcomeRow{"not applied, with an error", func(x *outcomeRun) {
			x.as("POST")
			lost(x)
			check(x, retrip.StateNotApplied, nil, errOutcomeCheck)
			x.is, x.err = append(x.is, errOutcomeCheck), errOutcomeCheck
		}},
		outcomeRow{"applied, with a response and an error", func(x *outcomeRun) {
			x.as("POST")
			lost(x)
			resp := httptestx.Canned(nil, 201, "order 7731")
			check(x, retrip.StateApplied, resp, errOutcomeCheck)
			x.is, x.err = append(x.is, errOutcomeCheck), errOutcomeCheck
			x.then(func() { assert.Equal(x.t, 1, resp.Body.(*httptestx.Body).Closes(), "an unused response is closed") })
		}},
		outcomeRow{"unknown, with a response", func(x *outcomeRun) {
			x.as("POST")
			lost(x)
			resp := httptestx.Canned(nil, 201, "order 7731")
			check(x, retrip.StateUnknown, resp, nil)
			x.then(func() { assert.Equal(x.t, 1, resp.Body.(*httptestx.Body).Closes(), "an unused response is closed") })
		}},
		outcomeRow{"forbidden", func(x *outcomeRun) {
			x.as("POST")
			lost(x)
			x.with(retrip.WithIdempotent(false))
			x.want("1 unknown/eof check_state/forbidden")
		}},
		outcomeRow{"forbidden, not applied", func(x *outcomeRun) {
			x.as("POST")
			lost(x)
			check(x, retrip.StateNotApplied, nil, nil)
			x.with(retrip.WithIdempotent(false))
			x.want("1 unknown/eof return/forbidden")
			x.maybe, x.exact = false, io.EOF
		}},
	)
	outcomeRows(t, rows...)
}

func TestOutcomeSafeMethodWithoutAPermitEOF(t *testing.T) {
	outcomeRows(
		t,
		outcomeRow{"GET forbidden", func(x *outcomeRun) {
			x.plays = []httptestx.Play{outcomeCuts["eof"].play}
			x.with(retrip.WithIdempotent(false))
			x.want("1 unknown/eof return/forbidden")
			x.heads, x.exact = 1, io.EOF
		}},
		outcomeRow{"Upgrade GET", func(x *outcomeRun) {
			x.plays = []httptestx.Play{outcomeCuts["eof"].play}
			x.upgrade()
			x.want("1 unknown/eof return/not_repeatable")
			x.heads, x.exact = 1, io.EOF
		}},
	)
}

func TestOutcomeCallerCancelsInFlight(t *testing.T) {
	outcomeRows(t, outcomeMethods("cancel", func(x *outcomeRun) {
		ctx, cancel := context.WithCancel(x.ctx)
		x.t.Cleanup(cancel)
		x.ctx = ctx
		x.plays = []httptestx.Play{{httptestx.ReadAll, httptestx.Call(cancel), httptestx.Silence}}
		x.want("1 unknown/canceled cancel/cancel")
		x.heads = 1
		if x.is = []error{context.Canceled}; x.method == "GET" {
			x.exact = context.Canceled
		} else {
			x.maybe = true
		}
	}, "GET", "PUT", "POST", "POST+key")...)
	// A cause of the caller's is the base's error, and what an *Error joins.
	cause := errors.New("the user left")
	outcomeRows(t, outcomeMethods("cancel with a cause", func(x *outcomeRun) {
		ctx, cancel := context.WithCancelCause(x.ctx)
		x.t.Cleanup(func() { cancel(nil) })
		x.ctx = ctx
		x.plays = []httptestx.Play{{httptestx.ReadAll, httptestx.Call(func() { cancel(cause) }), httptestx.Silence}}
		x.want("1 unknown/canceled cancel/cancel")
		x.heads = 1
		if x.is = []error{cause}; x.method == "GET" {
			x.exact = cause
		} else {
			x.is = append(x.is, context.Canceled)
			x.maybe = true
		}
	}, "GET", "POST")...)
}

func TestOutcomeBodyReaderFails(t *testing.T) {
	failing := func(x *outcomeRun) {
		x.method, x.body = strings.TrimSuffix(x.method, "+key"), ""
		x.edit = func(req *http.Request) {
			req.Body = httptestx.NewBody(httptestx.FailAfter("half of it", 4, errOutcomeBody))
			req.ContentLength = 10
		}
		x.plays = []httptestx.Play{{httptestx.ReadAll, httptestx.FIN}}
		x.heads, x.mayStay, x.is = 1, true, []error{errOutcomeBody}
		x.want("1 unknown/body return/body_failed")
		x.asBare, x.maybe = x.safe(), !x.safe()
	}
	outcomeRows(t, outcomeMethods("reader fails", failing, "GET", "PUT", "POST", "POST+key")...)
	outcomeRows(t, outcomeMethods("reader is too short", func(x *outcomeRun) {
		failing(x)
		x.edit = func(req *http.Request) {
			req.Body = httptestx.NewBody(strings.NewReader("half"))
			req.ContentLength = 10
		}
		x.is = nil
	}, "GET", "PUT", "POST")...)
	outcomeRows(t, outcomeMethods("body in memory is too short", func(x *outcomeRun) {
		failing(x)
		x.edit = func(req *http.Request) {
			other, err := http.NewRequestWithContext(x.ctx, x.method, req.URL.String(), strings.NewReader("half"))
			require.NoError(x.t, err)
			req.Body, req.GetBody, req.ContentLength = other.Body, other.GetBody, 10
		}
		x.is, x.racing = nil, true
	}, "GET", "PUT", "POST")...)
}

// outcomeRefusalError is a stream error as net/http has it: errors.As fills a look-alike.
type outcomeRefusalError struct{}

func (outcomeRefusalError) Error() string {
	return "stream error: stream ID 1; REFUSED_STREAM; received from peer"
}

func (outcomeRefusalError) As(target any) bool {
	v := reflect.ValueOf(target).Elem()
	if v.Kind() != reflect.Struct || !v.FieldByName("StreamID").IsValid() {
		return false
	}
	v.FieldByName("StreamID").SetUint(1)
	v.FieldByName("Code").SetUint(7)
	v.FieldByName("Cause").Set(reflect.ValueOf(errors.New("received from peer")))
	return true
}

// What HTTP/2 itself does is measured in internal/matrix; here a base says what it would.
func TestOutcomeRefusedIsRepeatedWhateverTheMethod(t *testing.T) {
	refusing := func(x *outcomeRun, n int) {
		x.bare = false
		x.base = func(std http.RoundTripper) http.RoundTripper {
			turns := 0
			return httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
				if turns++; turns > n {
					return std.RoundTrip(req)
				}
				if trace := httptrace.ContextClientTrace(req.Context()); trace != nil {
					trace.GetConn("origin.test:443")
					trace.GotConn(httptrace.GotConnInfo{})
				}
				if req.Body != nil {
					_ = req.Body.Close()
				}
				return nil, outcomeRefusalError{}
			})
		}
	}
	refused := "refused/protocol retry/transient refused"
	outcomeRows(t, outcomeMethods("once", func(x *outcomeRun) {
		refusing(x, 1)
		x.want("1 "+refused, outcomeSuccess)
		x.gives(200, 1)
	}, "GET", "PUT", "POST", "POST+key", "LOCK")...)
	outcomeRows(t, outcomeMethods("forbidden", func(x *outcomeRun) {
		refusing(x, 1)
		x.with(retrip.WithIdempotent(false))
		x.want("1 "+refused, outcomeSuccess)
		x.gives(200, 1)
	}, "GET", "POST")...)
	outcomeRows(t, outcomeMethods("the last", func(x *outcomeRun) {
		refusing(x, 3)
		x.want("1 "+refused, "2 "+refused, "3 refused/protocol attempts_exhausted/attempts_exhausted")
		x.is = []error{outcomeRefusalError{}}
	}, "POST", "PUT")...)
}

func TestOutcomeInsideAMarkedTransport(t *testing.T) {
	type inner struct{ lines []string }
	nest := func(x *outcomeRun, in *inner) {
		x.bare = false
		x.base = func(std http.RoundTripper) http.RoundTripper {
			return retrip.Must(retrip.New(std, retrip.WithMaxAttempts(5), retrip.WithHook(func(_ context.Context, e retrip.Event) {
				in.lines = append(in.lines, outcomeLine(&e))
			})))
		}
	}
	outcomeRows(
		t,
		outcomeRow{"GET 503", func(x *outcomeRun) {
			in := &inner{}
			nest(x, in)
			x.plays = []httptestx.Play{httptestx.Status(503, "busy")}
			x.want(outcomeRetried+"idempotent_method", "2 answered/- retry/transient idempotent_method",
				"3 answered/- attempts_exhausted/attempts_exhausted")
			x.gives(503, 3)
			x.answer = "busy"
			x.then(func() {
				nested := "1 answered/- return/nested"
				assert.Equal(x.t, []string{nested, nested, nested}, in.lines)
			})
		}},
		outcomeRow{"GET EOF", func(x *outcomeRun) {
			in := &inner{}
			nest(x, in)
			x.plays = []httptestx.Play{outcomeCuts["eof"].play}
			x.with(retrip.WithMaxAttempts(1))
			x.want("1 unknown/eof attempts_exhausted/attempts_exhausted")
			x.heads, x.exact = 1, io.EOF
			x.then(func() { assert.Equal(x.t, []string{"1 unknown/eof return/nested"}, in.lines) })
		}},
		outcomeRow{"POST EOF", func(x *outcomeRun) {
			x.as("POST")
			in := &inner{}
			nest(x, in)
			x.plays = []httptestx.Play{outcomeCuts["eof"].play}
			x.want("1 unknown/eof check_state/not_repeatable")
			x.heads, x.maybe, x.is = 1, true, []error{io.EOF}
			x.then(func() { assert.Equal(x.t, []string{"1 unknown/eof return/nested"}, in.lines) })
		}},
	)
}

func TestOutcomeBaseThatGivesNeitherOrBoth(t *testing.T) {
	broken := func(x *outcomeRun, answer func(*http.Request) (*http.Response, error)) {
		x.bare = false
		x.base = func(http.RoundTripper) http.RoundTripper { return httptestx.RoundTripFunc(answer) }
		x.want("1 unknown/other return/not_transient")
		x.maybe = !x.safe()
	}
	closing := func(req *http.Request) {
		if req.Body != nil {
			_ = req.Body.Close()
		}
	}
	outcomeRows(t, outcomeMethods("neither", func(x *outcomeRun) {
		broken(x, func(req *http.Request) (*http.Response, error) {
			closing(req)
			return nil, nil //nolint:nilnil // what is tested
		})
		x.says = "neither a response nor an error"
	}, "GET", "PUT", "POST")...)
	outcomeRows(t, outcomeMethods("both", func(x *outcomeRun) {
		var bodies []*httptestx.Body
		broken(x, func(req *http.Request) (*http.Response, error) {
			closing(req)
			resp := httptestx.Canned(req, 200, "done")
			bodies = append(bodies, resp.Body.(*httptestx.Body))
			return resp, errOutcomeOdd
		})
		x.says, x.is = "both a response and an error", []error{errOutcomeOdd}
		x.then(func() {
			assert.Len(x.t, bodies, 1)
			for _, b := range bodies {
				b.CheckClosedOnce(x.t)
			}
		})
	}, "GET", "PUT", "POST")...)
}

func TestOutcomeClassOther(t *testing.T) {
	// The first n attempts are not made by the transport.
	odd := func(x *outcomeRun, n int) {
		x.bare = false
		x.base = func(std http.RoundTripper) http.RoundTripper {
			turns := 0
			return httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
				if turns++; turns > n {
					return std.RoundTrip(req)
				}
				return outcomeFails(errOutcomeOdd).RoundTrip(req)
			})
		}
	}
	outcomeRows(t, outcomeMethods("repeated", func(x *outcomeRun) {
		odd(x, 1)
		x.want("1 unknown/other retry/transient "+x.permit(), outcomeSuccessU)
		x.gives(200, 1)
		x.maybe = !x.safe()
	}, "GET", "PUT", "POST+key")...)
	outcomeRows(t, outcomeMethods("not repeated", func(x *outcomeRun) {
		odd(x, 1)
		x.want("1 unknown/other check_state/not_repeatable")
		x.is, x.maybe = []error{errOutcomeOdd}, true
	}, "POST", "PATCH")...)
}

func TestOutcomeAnswerThatMayBeAnEcho(t *testing.T) {
	for method, status := range map[string]int{"PUT": 412, "DELETE": 404} {
		outcomeRows(t, outcomeMethods("EOF, then "+http.StatusText(status), func(x *outcomeRun) {
			x.plays = []httptestx.Play{outcomeCuts["eof"].play, httptestx.Status(status, "why")}
			x.want(outcomeRetriedE+"idempotent_method", "2 answered/- return/not_transient earlier_unknown")
			x.gives(status, 2)
			x.answer, x.maybe = "why", true
		}, method)...)
	}
}

// In virtual time: attempts and operations that are ended by a clock.

// outcomeHang answers nothing until the client goes.
func outcomeHang(_ int, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// outcomeHangFirst hangs in the first n turns.
func outcomeHangFirst(n int) func(int, http.ResponseWriter, *http.Request) {
	return func(turn int, w http.ResponseWriter, r *http.Request) {
		if turn <= n {
			outcomeHang(turn, w, r)
		}
	}
}

func TestOutcomeAttemptTimeoutAfterSending(t *testing.T) {
	hang := func(x *outcomeRun) {
		x.handler = outcomeHangFirst(1)
		x.with(retrip.WithAttemptTimeout(10 * time.Second))
	}
	outcomeTimed(t, outcomeMethods("repeated", func(x *outcomeRun) {
		hang(x)
		x.want("1 unknown/timeout retry/transient "+x.permit(), outcomeSuccessU)
		x.gives(200, 2)
		x.maybe = !x.safe()
	}, "GET", "PUT", "POST+key")...)
	outcomeTimed(t, outcomeMethods("not repeated", func(x *outcomeRun) {
		hang(x)
		x.want("1 unknown/timeout check_state/not_repeatable")
		x.heads, x.maybe, x.timeout, x.says = 1, true, true, "WithAttemptTimeout(10s)"
		x.isNot = []error{context.DeadlineExceeded, context.Canceled}
	}, "POST", "PATCH")...)
	outcomeTimed(t, outcomeMethods("costs 2", func(x *outcomeRun) {
		hang(x)
		x.with(retrip.WithBudget(retrip.NewBudget(0, 0, 1)))
		x.want("1 unknown/timeout budget_exhausted/budget_exhausted")
		x.heads, x.timeout, x.says = 1, true, "WithAttemptTimeout(10s)"
	}, "GET")...)
	outcomeTimed(t, outcomeMethods("costs no more than 2", func(x *outcomeRun) {
		hang(x)
		x.with(retrip.WithBudget(retrip.NewBudget(0, 0, 2)))
		x.want("1 unknown/timeout retry/transient idempotent_method", outcomeSuccessU)
		x.gives(200, 2)
	}, "GET")...)
	outcomeTimed(t, outcomeMethods("the last", func(x *outcomeRun) {
		hang(x)
		x.handler = outcomeHang
		x.with(retrip.WithMaxAttempts(1))
		x.want("1 unknown/timeout attempts_exhausted/attempts_exhausted")
		x.heads, x.timeout, x.says, x.maybe = 1, true, "WithAttemptTimeout(10s)", !x.safe()
	}, "GET", "PUT")...)
}

// hangingDials makes the first n dials wait for their context.
func (x *outcomeRun) hangingDials(n int) {
	if x.handler == nil {
		x.handler = func(int, http.ResponseWriter, *http.Request) {}
	}
	x.transport = func(std *http.Transport) {
		dial, dials := std.DialContext, atomic.Int32{}
		std.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if int(dials.Add(1)) <= n {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return dial(ctx, network, addr)
		}
	}
}

func TestOutcomeAttemptTimeoutInADial(t *testing.T) {
	outcomeTimed(t, outcomeMethods("repeated", func(x *outcomeRun) {
		x.hangingDials(1)
		x.with(retrip.WithAttemptTimeout(10 * time.Second))
		x.want("1 not_sent/timeout retry/transient not_sent", outcomeSuccess)
		x.gives(200, 1)
	}, "GET", "POST", "LOCK")...)
	outcomeTimed(t, outcomeMethods("the last", func(x *outcomeRun) {
		x.hangingDials(3)
		x.with(retrip.WithAttemptTimeout(10 * time.Second))
		x.want("1 not_sent/timeout retry/transient not_sent", "2 not_sent/timeout retry/transient not_sent",
			"3 not_sent/timeout attempts_exhausted/attempts_exhausted")
		x.timeout, x.says = true, "WithAttemptTimeout(10s)"
		x.isNot = []error{context.DeadlineExceeded, context.Canceled}
	}, "GET", "POST")...)
	outcomeTimed(t, outcomeMethods("the last of one", func(x *outcomeRun) {
		x.hangingDials(1)
		x.with(retrip.WithAttemptTimeout(10*time.Second), retrip.WithMaxAttempts(1))
		x.want("1 not_sent/timeout attempts_exhausted/attempts_exhausted")
		x.timeout, x.says = true, "WithAttemptTimeout(10s)"
	}, "GET", "POST")...)
}

func TestOutcomeOperationsDeadlineInAnAttempt(t *testing.T) {
	callers := func(x *outcomeRun) {
		ctx, cancel := context.WithTimeout(x.ctx, 10*time.Second)
		x.t.Cleanup(cancel)
		x.ctx = ctx
		x.is, x.timeout = []error{context.DeadlineExceeded}, true
	}
	total := func(x *outcomeRun) {
		x.with(retrip.WithTotalTimeout(10 * time.Second))
		x.is, x.timeout, x.says = []error{context.DeadlineExceeded}, true, "WithTotalTimeout(10s)"
	}
	const sent, unsent = "1 unknown/deadline deadline_exceeded/deadline_exceeded", "1 not_sent/deadline deadline_exceeded/deadline_exceeded"
	outcomeTimed(t, outcomeMethods("TotalTimeout, sent", func(x *outcomeRun) {
		total(x)
		x.handler = outcomeHang
		x.want(sent)
		x.heads, x.maybe = 1, !x.safe()
	}, "GET", "PUT", "POST", "POST+key")...)
	outcomeTimed(t, outcomeMethods("TotalTimeout, in a dial", func(x *outcomeRun) {
		total(x)
		x.hangingDials(1)
		x.want(unsent)
	}, "GET", "POST")...)
	outcomeTimed(t, outcomeMethods("the caller's, sent", func(x *outcomeRun) {
		callers(x)
		x.handler = outcomeHang
		x.want(sent)
		x.heads, x.maybe = 1, !x.safe()
		if x.safe() {
			x.exact = context.DeadlineExceeded
		}
	}, "GET", "PUT", "POST", "POST+key")...)
	outcomeTimed(t, outcomeMethods("the caller's, in a dial", func(x *outcomeRun) {
		callers(x)
		x.hangingDials(1)
		x.want(unsent)
		x.exact = context.DeadlineExceeded
	}, "POST")...)
	// Unobserved and untraced a GET's delivery is unknown; the error is the same.
	outcomeTimed(t, outcomeMethods("the caller's, in a dial", func(x *outcomeRun) {
		callers(x)
		x.hangingDials(1)
		x.want(unsent)
		x.exact = context.DeadlineExceeded
	}, "GET")...)
	outcomeTimed(t, outcomeMethods("the caller's, in attempt 2", func(x *outcomeRun) {
		callers(x)
		x.handler = func(turn int, w http.ResponseWriter, r *http.Request) {
			if turn == 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			outcomeHang(turn, w, r)
		}
		x.want(outcomeRetried+x.permit(), "2 unknown/deadline deadline_exceeded/deadline_exceeded")
		x.heads, x.maybe, x.says = 2, !x.safe(), "after 2 attempts"
	}, "GET", "PUT")...)
}

func TestOutcomeCallerEndsInAWait(t *testing.T) {
	busy := func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "busy")
	}
	outcomeTimed(t, outcomeMethods("cancel after a 503", func(x *outcomeRun) {
		x.handler = busy
		ctx, cancel := context.WithCancel(x.ctx)
		timer := time.AfterFunc(30*time.Minute, cancel)
		x.t.Cleanup(func() { timer.Stop(); cancel() })
		x.ctx = ctx
		x.with(retrip.WithBackoff(retrip.Constant(time.Hour)))
		x.want(outcomeRetried+x.permit(), "1 answered/canceled cancel/cancel")
		x.heads, x.is, x.err = 1, []error{context.Canceled}, context.Canceled
	}, "GET", "PUT", "POST+key")...)
	outcomeTimed(t, outcomeMethods("req.Cancel after a 503", func(x *outcomeRun) {
		x.handler = busy
		x.edit = func(req *http.Request) {
			gone := make(chan struct{})
			time.AfterFunc(30*time.Minute, func() { close(gone) })
			req.Cancel = gone //nolint:staticcheck // http.Client.Timeout sets it
		}
		x.with(retrip.WithBackoff(retrip.Constant(time.Hour)))
		x.want(outcomeRetried+x.permit(), "1 answered/canceled cancel/cancel")
		x.heads, x.is, x.err = 1, []error{context.Canceled}, context.Canceled
	}, "GET")...)
	outcomeTimed(t, outcomeMethods("cancel after an EOF", func(x *outcomeRun) {
		x.handler = func(int, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
		ctx, cancel := context.WithCancel(x.ctx)
		timer := time.AfterFunc(30*time.Minute, cancel)
		x.t.Cleanup(func() { timer.Stop(); cancel() })
		x.ctx = ctx
		x.with(retrip.WithBackoff(retrip.Constant(time.Hour)))
		x.want(outcomeRetriedE+x.permit(), "1 unknown/canceled cancel/cancel")
		x.heads, x.maybe, x.is = 1, !x.safe(), []error{context.Canceled, io.EOF}
	}, "GET", "PUT")...)
	// The deadline passes while the answer is drained, which took longer than thought.
	outcomeTimed(t, outcomeMethods("deadline after a 503", func(x *outcomeRun) {
		x.handler = func(_ int, w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
		ctx, cancel := context.WithTimeout(x.ctx, 30*time.Millisecond)
		x.t.Cleanup(cancel)
		x.ctx = ctx
		x.want(outcomeRetried+x.permit(), "1 answered/deadline deadline_exceeded/deadline_exceeded")
		x.heads, x.is, x.timeout = 1, []error{context.DeadlineExceeded}, true
	}, "GET", "PUT")...)
	outcomeTimed(t, outcomeMethods("total time-out after a 503", func(x *outcomeRun) {
		x.handler = func(_ int, w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
		x.with(retrip.WithTotalTimeout(30 * time.Millisecond))
		x.want(outcomeRetried+x.permit(), "1 answered/deadline deadline_exceeded/deadline_exceeded")
		x.heads, x.is, x.timeout, x.says = 1, []error{context.DeadlineExceeded}, true, "WithTotalTimeout(30ms)"
	}, "GET", "PUT")...)
}
