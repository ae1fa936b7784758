// The Go client over the same work as the Python clients: one task as JSON in, one line of JSON out.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
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
	BodySize int    `json:"body_bytes"`
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
	report(wall, before)
}

func report(wall, before float64) {
	after, peak := cpuSeconds()
	answer, _ := json.Marshal(map[string]any{"seconds": wall, "cpu_seconds": after - before, "peak_bytes": peak})
	fmt.Println(string(answer))
}

// produce calls one with a producer that is connected, and measures it.
func produce(t task, body []byte, one func(*nsq.Producer)) {
	producer, err := nsq.NewProducer(t.Address, nsq.NewConfig())
	if err != nil {
		log.Fatal(err)
	}
	producer.SetLoggerLevel(nsq.LogLevelError)
	if err := producer.Publish(t.Topic, body); err != nil {
		log.Fatal(err)
	}
	began := time.Now()
	before, _ := cpuSeconds()
	one(producer)
	report(time.Since(began).Seconds(), before)
	producer.Stop()
}

func publish(t task, body []byte) {
	produce(t, body, func(producer *nsq.Producer) {
		left := t.Count
		var all sync.WaitGroup
		for i := 0; i < t.InFlight; i++ {
			all.Add(1)
			go func() {
				defer all.Done()
				for atomic.AddInt64(&left, -1) >= 0 {
					if err := producer.Publish(t.Topic, body); err != nil {
						log.Fatal(err)
					}
				}
			}()
		}
		all.Wait()
	})
}

func batch(t task, body []byte) {
	bodies := make([][]byte, t.InFlight)
	for i := range bodies {
		bodies[i] = body
	}
	produce(t, body, func(producer *nsq.Producer) {
		for i := int64(0); i < t.Count/int64(t.InFlight); i++ {
			if err := producer.MultiPublish(t.Topic, bodies); err != nil {
				log.Fatal(err)
			}
		}
	})
}

func main() {
	t := task{Handlers: 4}
	if err := json.Unmarshal([]byte(os.Args[1]), &t); err != nil {
		log.Fatal(err)
	}
	body := []byte(strings.Repeat("x", t.BodySize))
	switch t.Work {
	case "drain":
		drain(t)
	case "publish":
		publish(t, body)
	case "batch":
		batch(t, body)
	default:
		log.Fatal("no work of this client: " + strconv.Quote(t.Work))
	}
}
