package retrip_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// fuzzDice takes decisions from a fuzz input; it says 0 where the input has ended.
type fuzzDice []byte

func (d *fuzzDice) next(n int) int {
	if len(*d) == 0 {
		return 0
	}
	v := int((*d)[0])
	*d = (*d)[1:]
	return v % n
}

// fuzzSource is a reader over the content that gives it in pieces and may fail.
type fuzzSource struct {
	content []byte
	at      int
	failAt  int // -1: never
	pieces  []int
	joined  bool // the end comes with the last bytes
	closes  int
	late    int
}

func (s *fuzzSource) Read(p []byte) (int, error) {
	if s.closes > 0 {
		s.late++
	}
	if s.at == s.failAt {
		return 0, errBodyDisk
	}
	if s.at == len(s.content) {
		return 0, io.EOF
	}
	size := min(len(p), len(s.content)-s.at)
	if len(s.pieces) > 0 {
		size = min(size, s.pieces[0]) // 0 is allowed: nothing, and no error
		s.pieces = s.pieces[1:]
	}
	if s.failAt > s.at {
		size = min(size, s.failAt-s.at)
	}
	n := copy(p[:size], s.content[s.at:])
	s.at += n
	if s.joined && s.at == len(s.content) && s.failAt != s.at {
		return n, io.EOF
	}
	return n, nil
}

func (s *fuzzSource) Close() error {
	s.closes++
	return nil
}

// fuzzAttempt is one attempt on the base: what it read, and what it does when the next one
// is under way already.
type fuzzAttempt struct {
	body   io.ReadCloser
	got    []byte
	err    error // what the body ended with
	closed bool
}

func (a *fuzzAttempt) read(n int) {
	if a.err != nil {
		return
	}
	p := make([]byte, n)
	m, err := a.body.Read(p)
	a.got = append(a.got, p[:m]...)
	a.err = err
}

func (a *fuzzAttempt) close() {
	a.closed = true
	_ = a.body.Close()
}

const (
	fuzzGetBody = iota
	fuzzOnce
	fuzzHeld
	fuzzFile
	fuzzKinds
)

// fuzzBase plays a base that reads as much as it likes, answers or fails, and reads and
// closes the bodies of earlier attempts whenever it likes.
type fuzzBase struct {
	dice     *fuzzDice
	attempts []*fuzzAttempt
	outcomes []int // 0: 200, 1: 503, 2: an error
}

func (b *fuzzBase) RoundTrip(req *http.Request) (*http.Response, error) {
	a := &fuzzAttempt{body: req.Body}
	b.attempts = append(b.attempts, a)
	for range b.dice.next(12) {
		if who := b.attempts[b.dice.next(len(b.attempts))]; who != a {
			b.late(who)
		}
		a.read(1 + b.dice.next(40))
	}
	if b.dice.next(2) == 0 {
		for a.err == nil {
			a.read(64)
		}
	}
	if b.dice.next(2) == 0 {
		a.close()
	}
	outcome := b.dice.next(3)
	if a.err != nil && !errors.Is(a.err, io.EOF) {
		outcome = 2
	}
	b.outcomes = append(b.outcomes, outcome)
	switch outcome {
	case 0:
		return httptestx.Canned(req, 200, "done"), nil
	case 1:
		return httptestx.Canned(req, 503, "busy"), nil
	default:
		if a.err != nil && !errors.Is(a.err, io.EOF) {
			return nil, a.err
		}
		return nil, io.ErrUnexpectedEOF
	}
}

func (b *fuzzBase) late(a *fuzzAttempt) {
	switch b.dice.next(3) {
	case 0:
		a.read(1 + b.dice.next(40))
	case 1:
		a.close()
	}
}

func FuzzRequestBody(f *testing.F) {
	f.Add(byte(fuzzGetBody), uint8(90), uint8(90), uint8(255), uint8(0), []byte{1, 2, 3})
	f.Add(byte(fuzzGetBody), uint8(90), uint8(80), uint8(255), uint8(0), []byte{11, 0, 39, 0, 39, 1, 1, 1})
	f.Add(byte(fuzzGetBody), uint8(90), uint8(90), uint8(50), uint8(0), []byte{3, 0, 39, 1, 1, 1, 5, 0, 9, 1, 2})
	f.Add(byte(fuzzOnce), uint8(90), uint8(0), uint8(255), uint8(0), []byte{0, 1, 1, 1, 0, 0, 0})
	f.Add(byte(fuzzOnce), uint8(90), uint8(90), uint8(255), uint8(0), []byte{5, 0, 9, 0, 9, 0, 1, 1, 1})
	f.Add(byte(fuzzHeld), uint8(90), uint8(0), uint8(255), uint8(90), []byte{5, 0, 9, 0, 9, 0, 1, 1, 1, 6, 0, 0, 2, 9, 1, 9, 1, 1, 1, 4, 0, 0, 7, 2})
	f.Add(byte(fuzzHeld), uint8(90), uint8(0), uint8(255), uint8(89), []byte{9, 0, 39, 0, 39, 0, 39, 0, 0, 1, 1})
	f.Add(byte(fuzzHeld), uint8(90), uint8(90), uint8(40), uint8(200), []byte{9, 0, 3, 0, 4, 1, 1, 1, 9, 1, 0, 1, 0, 2})
	f.Add(byte(fuzzFile), uint8(90), uint8(0), uint8(10), uint8(0), []byte{5, 0, 9, 0, 9, 1, 1, 1, 6, 0, 0, 2, 9, 1, 9, 1, 1, 1})
	f.Add(byte(fuzzFile), uint8(90), uint8(70), uint8(3), uint8(0), []byte{5, 0, 9, 0, 9, 1, 1, 1, 6, 0, 0, 2, 9})
	f.Add(byte(fuzzHeld), uint8(90), uint8(90), uint8(255), uint8(200), []byte("000000100000"))
	f.Add(byte(fuzzHeld), uint8(0), uint8(0), uint8(255), uint8(10), []byte{0, 0, 1, 1, 0, 0, 1, 1})

	name := filepath.Join(f.TempDir(), "body")
	all, err := io.ReadAll(httptestx.Pattern(255))
	if err != nil {
		f.Fatal(err)
	}
	if err := os.WriteFile(name, all, 0o600); err != nil {
		f.Fatal(err)
	}

	// size bytes of content, of which ContentLength promises length (0: unknown); the reader
	// fails after fail bytes (beyond the content: never; for files the offset they stand at).
	f.Fuzz(func(t *testing.T, kind byte, size, length, fail, buffer uint8, script []byte) {
		kind %= fuzzKinds
		dice := fuzzDice(script)
		content := all[:size]
		var sources []*fuzzSource
		source := func() *fuzzSource {
			s := &fuzzSource{content: content, failAt: -1, joined: dice.next(2) == 1}
			if int(fail) <= len(content) {
				s.failAt = int(fail)
			}
			for range dice.next(4) {
				s.pieces = append(s.pieces, dice.next(30))
			}
			sources = append(sources, s)
			return s
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://origin.test/", nil)
		require.NoError(t, err)
		req.ContentLength = int64(length)
		var file *os.File
		switch kind {
		case fuzzFile:
			file, err = os.Open(name)
			require.NoError(t, err)
			defer file.Close()
			offset, err := file.Seek(int64(fail), io.SeekStart)
			require.NoError(t, err)
			content = all[offset:]
			req.Body = file
		case fuzzGetBody:
			req.Body = source()
			req.GetBody = func() (io.ReadCloser, error) { return source(), nil }
		default:
			req.Body = source()
		}
		opts := []retrip.Option{
			retrip.WithBackoff(retrip.Constant(0)), retrip.WithBudget(nil),
			retrip.WithMaxAttempts(1 + dice.next(4)),
		}
		if kind == fuzzHeld {
			opts = append(opts, retrip.WithBodyBuffer(int64(buffer)))
		}
		base := &fuzzBase{dice: &dice}
		ctx, rec := retrip.Record(t.Context())
		resp, err := retrip.Must(retrip.New(base, opts...)).RoundTrip(req.WithContext(ctx))
		require.NotEqual(t, resp == nil, err == nil, "one of response and error")
		if resp != nil {
			_, err := io.ReadAll(resp.Body)
			require.NoError(t, err, "the answer that comes back is whole")
			require.NoError(t, resp.Body.Close())
		}

		taken := 0 // of a body that can be read once
		if kind == fuzzOnce || kind == fuzzHeld {
			taken = sources[0].at
		}
		events := rec.Events()
		require.Len(t, events, len(base.attempts))
		last := events[len(events)-1]
		for i, a := range base.attempts {
			// What an attempt reads late is still its own, or nothing.
			if !a.closed {
				a.read(7)
			}
			require.True(t, bytes.HasPrefix(content, a.got), "attempt %d read %q of %q", i+1, a.got, content)
			if errors.Is(a.err, io.EOF) && !a.closed {
				require.Len(t, a.got, len(content), "a torn body looked complete")
			}
			if i > 0 && length > 0 && errors.Is(a.err, io.EOF) {
				require.Len(t, a.got, int(length), "a replay of another length looked complete")
			}
			if i > 0 && length > 0 && len(content) != int(length) {
				require.Less(t, len(a.got), int(length), "the last byte of a replay of another length was given away")
			}
			if i < len(base.attempts)-1 {
				require.NotZero(t, base.outcomes[i], "a success was sent again")
				if a.err != nil && events[i].Reason == retrip.ReasonBodyFailed {
					t.Errorf("attempt %d failed by its body and was followed", i+1)
				}
				require.Equal(t, retrip.DecisionRetry, events[i].Decision)
			}
		}
		if last.Reason == retrip.ReasonBodyNotReplayable {
			require.True(t, kind == fuzzOnce || kind == fuzzHeld)
			if kind == fuzzHeld && int(length) <= int(buffer) {
				require.Greater(t, taken, int(buffer), "it fitted")
			}
		}
		for _, a := range base.attempts {
			a.close()
			a.close()
		}
		for _, s := range sources {
			require.Equal(t, 1, s.closes, "a body must be closed once")
			if kind != fuzzGetBody {
				require.Zero(t, s.late, "a body was read after it was closed")
			}
		}
		if file != nil {
			require.ErrorIs(t, file.Close(), os.ErrClosed, "the file was left open")
		}
	})
}

// FuzzResponseBody lets a predicate and the caller read an answer piece by piece: the
// caller gets every byte and the source's own end, whatever the predicate did.
func FuzzResponseBody(f *testing.F) {
	f.Add(uint16(10), uint16(100), uint8(0), []byte{1, 2, 3})
	f.Add(uint16(5000), uint16(100), uint8(1), []byte{9, 200, 200, 200, 200, 0, 9, 1})
	f.Add(uint16(9000), uint16(4096), uint8(2), []byte{200, 255, 255, 255, 255, 255, 255, 3, 8, 0})
	f.Add(uint16(0), uint16(0), uint8(3), []byte{})
	all, err := io.ReadAll(httptestx.Pattern(1 << 16))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, size, fail uint16, flags uint8, script []byte) {
		dice := fuzzDice(script)
		bad := flags&1 != 0 && fail <= size
		var sources []*fuzzSource
		calls := 0
		base := httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
			s := &fuzzSource{content: all[:size], failAt: -1, joined: flags&4 != 0}
			if bad {
				s.failAt = int(fail)
			}
			for range dice.next(5) {
				s.pieces = append(s.pieces, 1+dice.next(200))
			}
			sources = append(sources, s)
			calls++
			resp := httptestx.Canned(req, 200, "")
			if calls == 1 && flags&2 != 0 {
				resp.StatusCode = 503
			}
			resp.Body, resp.ContentLength = s, -1
			if flags&8 != 0 {
				resp.ContentLength = int64(size)
			}
			return resp, nil
		})
		predicate := func(a retrip.Attempt) retrip.Verdict {
			var seen []byte
			for range dice.next(20) {
				p := make([]byte, 1+dice.next(255)*8)
				n, err := a.Response.Body.Read(p)
				seen = append(seen, p[:n]...)
				if err != nil {
					break
				}
			}
			require.True(t, bytes.HasPrefix(all[:size], seen))
			require.LessOrEqual(t, len(seen), 4<<10)
			if dice.next(2) == 1 {
				require.NoError(t, a.Response.Body.Close())
			}
			return retrip.VerdictDefault
		}
		opts := []retrip.Option{retrip.WithBackoff(retrip.Constant(0)), retrip.WithBudget(nil), retrip.WithRetryIf(predicate)}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://origin.test/", nil)
		require.NoError(t, err)
		resp, err := retrip.Must(retrip.New(base, opts...)).RoundTrip(req)
		require.NoError(t, err)
		var got []byte
		for {
			p := make([]byte, 1+dice.next(255)*4)
			n, err := resp.Body.Read(p)
			got = append(got, p[:n]...)
			if err == nil {
				continue
			}
			if bad {
				require.ErrorIs(t, err, errBodyDisk)
				require.True(t, bytes.Equal(all[:fail], got))
			} else {
				require.ErrorIs(t, err, io.EOF)
				require.True(t, bytes.Equal(all[:size], got))
			}
			break
		}
		require.NoError(t, resp.Body.Close())
		for _, s := range sources {
			require.Equal(t, 1, s.closes)
		}
	})
}
