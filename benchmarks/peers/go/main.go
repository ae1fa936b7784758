// The Go client over the same work as the Python clients: one task as JSON in, one line of JSON out.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nsqio/go-nsq"
)

type task struct {
	Work     string `json:"work"`
	Address  string `json:"address"`
	Topic    string `json:"topic"`
	Channel  string `json:"channel"`
	Count    int64  `json:"count"`
	InFlight int    `json:"in_flight"`
	Handlers int    `json:"handlers"`
}

func cpuSeconds() (float64, int64) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(usage.Utime) + seconds(usage.Stime), usage.Maxrss * 1024
}

func drain(t task) {
	config := nsq.NewConfig()
	config.MaxInFlight = t.InFlight
	consumer, err := nsq.NewConsumer(t.Topic, t.Channel, config)
	if err != nil {
		log.Fatal(err)
	}
	consumer.SetLoggerLevel(nsq.LogLevelError)
	done := make(chan struct{})
	left := t.Count
	consumer.AddConcurrentHandlers(nsq.HandlerFunc(func(*nsq.Message) error {
		if atomic.AddInt64(&left, -1) == 0 {
			close(done)
		}
		return nil
	}), t.Handlers)
	began := time.Now()
	before, _ := cpuSeconds()
	if err := consumer.ConnectToNSQD(t.Address); err != nil {
		log.Fatal(err)
	}
	<-done
	wall := time.Since(began).Seconds()
	consumer.Stop()
	<-consumer.StopChan
	after, peak := cpuSeconds()
	answer, _ := json.Marshal(map[string]any{"seconds": wall, "cpu_seconds": after - before, "peak_bytes": peak})
	fmt.Println(string(answer))
}

func main() {
	t := task{Handlers: 4}
	if err := json.Unmarshal([]byte(os.Args[1]), &t); err != nil {
		log.Fatal(err)
	}
	if t.Work != "drain" {
		log.Fatal("only drain, not " + strconv.Quote(t.Work))
	}
	drain(t)
}
