// redsync behind the line protocol of the peers: a command on each line of standard input, an
// answer of one word, or an error, on each line of standard output. Arguments: the URLs of the
// masters.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
)

const (
	retryDelay = 20 * time.Millisecond
	// Far above what a master takes on a busy machine; the default is 5 % of the TTL.
	timeoutFactor = 0.5
	connectMax    = 10 * time.Second
	// Connections of a master that wait to be used again.
	idleMax = 8
)

// A master, and its idle connections. It takes the place of a Redis library, so that redsync is
// the only module.
type master struct {
	addr string
	idle chan *connection
}

func (m *master) Get(context.Context) (redis.Conn, error) {
	select {
	case idle := <-m.idle:
		return idle, nil
	default:
	}
	stream, err := net.DialTimeout("tcp", m.addr, connectMax)
	if err != nil {
		return nil, err
	}
	return &connection{master: m, stream: stream, input: bufio.NewReader(stream)}, nil
}

type connection struct {
	master   *master
	stream   net.Conn
	input    *bufio.Reader
	isBroken bool
}

func (c *connection) Get(name string) (string, error) {
	reply, err := c.ask("GET", name)
	value, _ := reply.(string)
	return value, err
}

func (c *connection) Set(name, value string) (bool, error) {
	reply, err := c.ask("SET", name, value)
	return reply == "OK", err
}

func (c *connection) SetNX(name, value string, expiry time.Duration) (bool, error) {
	reply, err := c.ask("SET", name, value, "NX", "PX", fmt.Sprint(expiry.Milliseconds()))
	return reply == "OK", err
}

func (c *connection) Eval(script *redis.Script, keysAndArgs ...any) (any, error) {
	words := []string{"EVAL", script.Src, fmt.Sprint(script.KeyCount)}
	for _, word := range keysAndArgs {
		words = append(words, fmt.Sprint(word))
	}
	return c.ask(words...)
}

func (c *connection) ScriptLoad(script *redis.Script) error {
	_, err := c.ask("SCRIPT", "LOAD", script.Src)
	return err
}

func (c *connection) PTTL(name string) (time.Duration, error) {
	reply, err := c.ask("PTTL", name)
	millis, _ := reply.(int64)
	return time.Duration(millis) * time.Millisecond, err
}

// Close keeps the connection for the next Get.
func (c *connection) Close() error {
	if !c.isBroken {
		select {
		case c.master.idle <- c:
			return nil
		default:
		}
	}
	return c.stream.Close()
}

func (c *connection) ask(words ...string) (any, error) {
	request := fmt.Sprintf("*%d\r\n", len(words))
	for _, word := range words {
		request += fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
	}
	_, err := io.WriteString(c.stream, request)
	var reply any
	if err == nil {
		reply, err = c.reply()
	}
	var refusal serverError
	c.isBroken = err != nil && !errors.As(err, &refusal)
	return reply, err
}

type serverError string

func (e serverError) Error() string { return string(e) }

func (c *connection) reply() (any, error) {
	line, err := c.input.ReadString('\n')
	if err != nil {
		return nil, err
	}
	kind, rest := line[0], strings.TrimRight(line[1:], "\r\n")
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return nil, serverError(rest)
	case ':':
		return strconv.ParseInt(rest, 10, 64)
	case '$':
		length, err := strconv.Atoi(rest)
		if err != nil || length < 0 {
			return nil, err
		}
		bytes := make([]byte, length+len("\r\n"))
		_, err = io.ReadFull(c.input, bytes)
		return string(bytes[:length]), err
	}
	return nil, fmt.Errorf("unknown reply %q", line)
}

type peer struct {
	masters *redsync.Redsync
	held    *redsync.Mutex
}

func (p *peer) mutex(key string, ttl time.Duration, more ...redsync.Option) *redsync.Mutex {
	options := []redsync.Option{
		redsync.WithExpiry(ttl),
		redsync.WithTimeoutFactor(timeoutFactor),
		redsync.WithRetryDelay(retryDelay),
	}
	return p.masters.NewMutex(key, append(options, more...)...)
}

func (p *peer) acquire(key string, ttl time.Duration, tries int) (string, error) {
	mutex := p.mutex(key, ttl, redsync.WithTries(tries))
	err := mutex.Lock()
	var taken *redsync.ErrTaken
	switch {
	case err == nil:
		p.held = mutex
		return "granted", nil
	case errors.Is(err, redsync.ErrFailed), errors.As(err, &taken):
		return "refused", nil
	}
	return "", err
}

// A mutex extends to the expiry that it was made with, so another one gets the value.
func (p *peer) extend(ttl time.Duration) string {
	mutex := p.mutex(p.held.Name(), ttl, redsync.WithValue(p.held.Value()))
	if isExtended, _ := mutex.Extend(); !isExtended {
		return "refused"
	}
	p.held = mutex
	return "extended"
}

func (p *peer) unlock() string {
	if wasHeld, _ := p.held.Unlock(); wasHeld {
		return "released"
	}
	return "lost"
}

func (p *peer) answer(words []string) (string, error) {
	millis := func(index int) time.Duration {
		number, _ := strconv.Atoi(words[index])
		return time.Duration(number) * time.Millisecond
	}
	switch words[0] {
	case "lock":
		return p.acquire(words[1], millis(2), 1)
	case "wait":
		return p.acquire(words[1], millis(2), int(millis(3)/retryDelay)+1)
	case "extend":
		return p.extend(millis(1)), nil
	case "unlock":
		return p.unlock(), nil
	}
	return "", fmt.Errorf("unknown command %q", words)
}

func main() {
	var pools []redis.Pool
	for _, text := range os.Args[1:] {
		address, err := url.Parse(text)
		if err != nil {
			panic(err)
		}
		pool := &master{addr: address.Host, idle: make(chan *connection, idleMax)}
		connection, err := pool.Get(context.Background())
		if err != nil {
			panic(err)
		}
		connection.Close()
		pools = append(pools, pool)
	}
	peer := &peer{masters: redsync.New(pools...)}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() && lines.Text() != "quit" {
		answer, err := peer.answer(strings.Fields(lines.Text()))
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Println(answer)
	}
}
