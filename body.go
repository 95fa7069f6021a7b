package retrip

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
)

// Every attempt has a reader of its own. Attempts never share one, because the base
// reads and closes a body after RoundTrip has returned, on HTTP/2 even after the answer
// was closed; rewinding a shared reader sends wrong bytes (WIRE.md C6–C8).

// requestBody knows where the bodies of an operation's attempts come from. The zero value is
// that of a request without one.
type requestBody struct {
	req    *http.Request
	kind   bodyKind
	length int64       // as promised
	file   *sharedFile // kind fileBody
	stream *stream     // kind streamBody
	wrong  bool        // kind memoryBody of another length than promised
	handed bool        // the base got the caller's own Body, and closes it
}

type bodyKind int8

const (
	noBody     bodyKind = iota
	memoryBody          // GetBody over what net/http itself takes for memory
	readerBody          // GetBody over any other reader
	fileBody            // a regular file without GetBody
	streamBody          // can be read once, apart from what is held of it
)

var (
	errBodyLength   = errors.New("retrip: the body is longer or shorter than ContentLength")
	errNoReplay     = errors.New("retrip: GetBody returned no body")
	errSuperseded   = errors.New("retrip: the attempt that this body was for is over")
	errNotHTTP1     = errors.New("retrip: HTTP/2 bodies are replayed by retrip itself")
	errUnreplayable = errors.New("retrip: the body can be read only once")
)

func (b *requestBody) init(req *http.Request) {
	b.req, b.length = req, promised(req)
	if req.GetBody != nil {
		b.kind = readerBody
		if length, ok := inMemory(req.Body); ok {
			b.kind, b.wrong = memoryBody, b.length >= 0 && length != b.length
		}
		return
	}
	if f, ok := req.Body.(*os.File); ok {
		if b.file = shareFile(f); b.file != nil {
			b.kind = fileBody
			return
		}
	}
	b.kind, b.stream = streamBody, &stream{src: req.Body}
}

// promised is the length that ContentLength promises of a body; -1: none.
func promised(req *http.Request) int64 {
	if req.ContentLength > 0 {
		return req.ContentLength
	}
	return -1
}

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

// hold keeps what is read of a one-shot body, if it may fit most bytes.
func (b *requestBody) hold(most int64) {
	if b.kind == streamBody && b.length <= most {
		b.stream.max = most
	}
}

// inMemory reports whether net/http itself takes body for memory, and how much is left of
// it. Such a body goes out in one piece with the header, but only if it is not wrapped
// (transfer.go, unwrapNopCloser).
func inMemory(body io.ReadCloser) (length int64, ok bool) {
	switch r := unwrap(body).(type) {
	case *bytes.Reader:
		return int64(r.Len()), true
	case *bytes.Buffer:
		return int64(r.Len()), true
	case *strings.Reader:
		return int64(r.Len()), true
	default:
		return 0, false
	}
}

var (
	nopCloser         = reflect.TypeOf(io.NopCloser(nil))
	nopCloserWriterTo = reflect.TypeOf(io.NopCloser(strings.NewReader("")))
)

// unwrap finds the reader that io.NopCloser hides.
func unwrap(body io.ReadCloser) any {
	if t := reflect.TypeOf(body); t == nopCloser || t == nopCloserWriterTo {
		return reflect.ValueOf(body).Field(0).Interface()
	}
	return body
}

// first gives the first attempt its body: the caller's own, watched unless that would cost
// a second write.
func (b *requestBody) first(a *traced) {
	switch b.kind {
	case noBody:
	case memoryBody:
		b.handed = true
	case readerBody:
		b.handed = true
		b.give(a, b.req.Body, false)
	default:
		next, _ := b.next() // neither kind can fail before it was read
		b.give(a, next, false)
	}
}

// give gives an attempt a body that is watched. A request without one goes down as the
// caller made it: nil and NoBody are not the same to everybody.
func (b *requestBody) give(a *traced, body io.ReadCloser, again bool) {
	if b.kind == noBody {
		return
	}
	a.body = &attemptBody{src: body, length: b.length, strict: again, of: a}
	a.request.Body = a.body
}

// replayable reports whether another attempt can have the whole body.
func (b *requestBody) replayable() bool {
	return b.kind != streamBody || !b.stream.isSpent()
}

// next makes the body of a further attempt. errBodyLength says that its bytes are not
// those that ContentLength promises.
func (b *requestBody) next() (io.ReadCloser, error) {
	switch b.kind {
	case noBody:
		return nil, nil //nolint:nilnil // none is needed
	case fileBody:
		return b.file.open(), nil
	case streamBody:
		return b.stream.open()
	}
	return replay(b.req, b.length)
}

// replay makes a body by GetBody and compares what can be compared: a layer above may
// have replaced Body and left GetBody as it was.
func replay(req *http.Request, length int64) (io.ReadCloser, error) {
	body, err := req.GetBody()
	switch {
	case err != nil:
		return nil, err
	case body == nil:
		return nil, errNoReplay
	}
	if sized, ok := unwrap(body).(interface{ Len() int }); ok && length >= 0 && int64(sized.Len()) != length {
		_ = body.Close()
		return nil, errBodyLength
	}
	return body, nil
}

// hidden is the GetBody of an HTTP/1 attempt: net/http makes bodies by it for what it
// sends again by itself.
func (a *traced) hidden() (io.ReadCloser, error) {
	if !a.onHTTP1() {
		return nil, errNotHTTP1
	}
	length := promised(a.whole)
	body, err := replay(a.whole, length)
	switch {
	case errors.Is(err, errBodyLength):
		a.fail(err)
		return nil, err
	case err != nil:
		return nil, err
	}
	if _, ok := inMemory(body); ok {
		return body, nil
	}
	return &attemptBody{src: body, length: length, strict: true, of: a}, nil
}

// finish is the operation's end: what no attempt holds any more is closed.
func (b *requestBody) finish() {
	switch b.kind {
	case fileBody:
		b.file.finish()
	case streamBody:
		b.stream.finish()
	case memoryBody, readerBody:
		if !b.handed {
			b.handed = true
			_ = b.req.Body.Close()
		}
	case noBody:
	}
}

// attemptBody is a body of one attempt where it is watched: it tells the reader's own
// failures from the network's, and holds a replay to ContentLength.
type attemptBody struct {
	src    io.ReadCloser
	of     *traced // where it is told what became of it
	length int64   // -1: unknown
	read   int64   // by the one reader that a body has
	strict bool    // a replay: other bytes than promised must not make a valid request
	begun  bool    // by the same reader
	closed atomic.Bool
}

func (b *attemptBody) Read(p []byte) (int, error) {
	if !b.begun {
		b.begun = true
		b.of.bodyRead()
	}
	if b.strict && b.length >= 0 {
		return b.readStrictly(p)
	}
	n, err := b.src.Read(p)
	b.read += int64(n)
	switch {
	case err != nil && err != io.EOF:
		b.fail(err)
	case b.length >= 0 && (b.read > b.length || err == io.EOF && b.read < b.length):
		// The base finds this out by itself or lets it pass; the failure is the body's.
		b.fail(errBodyLength)
	}
	return n, err
}

// readStrictly holds the last byte back until the source has ended, so that a source
// that is too long never completes a request; one that is too short fails, since on
// HTTP/2 the base would end the stream as if all were well (WIRE.md b03, b04).
func (b *attemptBody) readStrictly(p []byte) (int, error) {
	rest := b.length - b.read
	if rest > 0 && int64(len(p)) > rest {
		p = p[:rest]
	}
	n := 0
	var err error
	if rest > 0 {
		n, err = b.src.Read(p)
	}
	for none := 0; err == nil && int64(n) == rest; none++ {
		var extra [1]byte
		var more int
		if more, err = b.src.Read(extra[:]); more > 0 || none > 100 {
			err = errBodyLength
		}
	}
	b.read += int64(n)
	if err == io.EOF && b.read == b.length {
		return n, io.EOF
	}
	if err == io.EOF {
		err = errBodyLength
	}
	if err != nil {
		b.fail(err)
		return 0, err
	}
	return n, nil
}

// Close closes the source once. What a Read in flight says then is not the reader's
// fault.
func (b *attemptBody) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	err := b.src.Close()
	if err != nil {
		b.of.fail(err)
	}
	return err
}

func (b *attemptBody) fail(err error) {
	if !b.closed.Load() {
		b.of.fail(err)
	}
}

// bodyRead tells that a body of the attempt is read.
func (a *traced) bodyRead() {
	a.mu.Lock()
	a.seen.BodyRead = true
	a.mu.Unlock()
}

// fail keeps a failure of a body's own reader, the first one.
func (a *traced) fail(err error) { a.failed.CompareAndSwap(nil, &err) }

// failure is the reader's own error, nil if there was none.
func (a *traced) failure() error {
	if err := a.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// sharedFile is a regular file that several attempts read, each from the offset at which
// the file stood and without moving it. It is closed once, after the operation and the
// last reader.
type sharedFile struct {
	f      *os.File
	offset int64

	mu      sync.Mutex
	readers int
	over    bool
}

// shareFile returns nil for what can be read only once: a pipe, a terminal, a file that
// refuses to seek.
func shareFile(f *os.File) *sharedFile {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	offset, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil
	}
	return &sharedFile{f: f, offset: offset}
}

func (s *sharedFile) open() io.ReadCloser {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers++
	return &fileReader{SectionReader: io.NewSectionReader(s.f, s.offset, 1<<62), share: s}
}

func (s *sharedFile) finish() { _ = s.leave(&s.over) }

// leave marks one holder as gone and closes the file after the last.
func (s *sharedFile) leave(gone *bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if *gone {
		return nil
	}
	*gone = true
	if gone != &s.over {
		s.readers--
	}
	if s.over && s.readers == 0 {
		return s.f.Close()
	}
	return nil
}

type fileReader struct {
	*io.SectionReader

	share *sharedFile
	gone  bool // guarded by share.mu
}

func (r *fileReader) Close() error { return r.share.leave(&r.gone) }
