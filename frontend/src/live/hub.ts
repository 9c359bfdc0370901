// Connect socket and store: subscribed topics, their states, and listeners, notified once per frame.
import type { Snapshot } from "./polling";
import { LOGGED_OUT, type SocketEvents, Socket, type SocketLike } from "./socket";
import { NOTHING, type TopicMessage, type TopicState, apply, unsettled } from "./store";
import { learnServerTime } from "../ui/time";
import { DEAD_MS, type Heard } from "./freshness";
import { COMPANION, Joiner } from "../pages/fleet/join_readings";
import type { Message } from "./topics";

type Listener = (state: TopicState) => void;

/** A missing snapshot is requested again after this time. */
const TIMEOUT_MS = 5000;

export class Hub implements SocketEvents {
  readonly heard: Heard = { isConnected: false, isLoggedOut: false, blindSeconds: null, aliveAt: null, cycleAgeSeconds: null, polledAt: null };
  hasFailed = false;
  /** Called when the connection changes, and on every `alive`. */
  onHeard: () => void = () => undefined;

  private readonly states = new Map<string, TopicState>();
  private readonly listeners = new Map<string, Set<Listener>>();
  private readonly changed = new Set<string>();
  private readonly socket: Socket;
  private readonly joiner = new Joiner();
  private isHidden = false;
  private isScheduled = false;
  private sent = "";
  private subscribedAt = 0;
  private openedAt = 0;

  constructor(
    make: () => SocketLike,
    private readonly frame: (run: () => void) => void = (run) => requestAnimationFrame(run),
    private readonly now: () => number = Date.now,
  ) {
    this.socket = new Socket(this, make);
  }

  start(): void {
    this.socket.connect();
  }

  /** Call `listener` with the topic's state on every change, batched per frame. Returns an unsubscribe function. */
  listen(topic: string, listener: Listener): () => void {
    const listeners = this.listeners.get(topic) ?? new Set();
    listeners.add(listener);
    this.listeners.set(topic, listeners);
    if (this.state(topic).hasRows) {
      this.changed.add(topic);
      this.schedule();
    }
    this.subscribe();
    return () => {
      listeners.delete(listener);
      if (listeners.size === 0) {
        this.listeners.delete(topic);
        const topics = this.topics();
        for (const old of [...this.states.keys()]) if (!topics.includes(old)) this.states.delete(old);
      }
      this.subscribe();
    };
  }

  /** Return the state as views see it, joined with its companion. */
  state(topic: string): TopicState {
    const companion = COMPANION[topic];
    return companion === undefined ? this.ownState(topic) : this.joiner.join(this.ownState(topic), this.ownState(companion));
  }

  private ownState(topic: string): TopicState {
    return this.states.get(topic) ?? NOTHING;
  }

  private topics(): string[] {
    const companions = [...this.listeners.keys()].flatMap((topic) => COMPANION[topic] ?? []);
    return [...new Set([...this.listeners.keys(), ...companions])].sort();
  }

  /** Unsubscribe a hidden tab; subscribe again when visible. */
  setHidden(isHidden: boolean): void {
    if (this.isHidden === isHidden) return;
    this.isHidden = isHidden;
    if (isHidden) {
      for (const [topic, state] of this.states) this.states.set(topic, unsettled(state));
    } else {
      this.socket.hurry();
    }
    this.subscribe();
  }

  /** Once a second: drop dead connections and request missing snapshots. */
  watch(): void {
    if (!this.heard.isConnected || this.isHidden) return;
    if (this.now() - Math.max(this.heard.aliveAt ?? 0, this.openedAt) > DEAD_MS) return this.socket.reset();
    const missing = this.topics().filter((topic) => /waiting|gap/.test(this.ownState(topic).status));
    if (missing.length > 0 && this.now() - this.subscribedAt > TIMEOUT_MS) this.subscribe(missing);
  }

  hurry(): void {
    this.socket.hurry();
  }

  opened(): void {
    this.heard.isConnected = true;
    this.heard.isLoggedOut = false;
    this.heard.polledAt = null;
    // Polled rows have no number that a delta can follow.
    for (const [topic, state] of this.states) this.states.set(topic, unsettled(state));
    this.openedAt = this.now();
    this.sent = "";
    this.subscribe();
    this.onHeard();
  }

  closed(code: number): void {
    this.heard.isConnected = false;
    // A later failure to connect does not end it; only a connection does.
    this.heard.isLoggedOut ||= code === LOGGED_OUT;
    this.hasFailed = true;
    for (const [topic, state] of this.states) this.states.set(topic, unsettled(state));
    this.onHeard();
  }

  received(data: unknown): void {
    if (typeof data !== "object" || data === null) return;
    if (Array.isArray(data)) return data.forEach((each) => this.received(each));
    const message = data as Message;
    if ("alive" in message) {
      // Tells the server that this page keeps up.
      if (message.answer === true) this.socket.send({ seen: message.alive });
      this.heard.aliveAt = this.now();
      this.heard.cycleAgeSeconds = message.cycle_age_seconds ?? null;
      this.heard.blindSeconds = message.blind_seconds ?? null;
      learnServerTime(message.alive);
      return this.onHeard();
    }
    if (typeof message.topic === "string") this.receive(message);
  }

  /** Apply polled rows, unless the socket is connected. */
  polled(answer: Snapshot): void {
    if (this.heard.isConnected) return;
    this.heard.polledAt = this.now();
    this.heard.cycleAgeSeconds = answer.cycle_age_seconds;
    this.load(answer);
    this.onHeard();
  }

  /** Apply the rows of a moment: those that the page carries, or polled ones. */
  load({ alive, topics, errors }: Snapshot): void {
    learnServerTime(alive);
    for (const [topic, snapshot] of Object.entries(topics)) this.receive({ topic, seq: 0, snapshot });
    for (const [topic, error] of Object.entries(errors)) this.receive({ topic, error });
  }

  loggedOut(): void {
    this.heard.isLoggedOut = true;
    this.onHeard();
  }

  private receive(message: TopicMessage): void {
    if (!this.subscribed().includes(message.topic)) return;
    const previous = this.ownState(message.topic);
    const next = apply(previous, message);
    this.states.set(message.topic, next);
    if (next === previous) return;
    if (next.status === "gap") return this.subscribe([message.topic]);
    this.changed.add(Object.keys(COMPANION).find((topic) => COMPANION[topic] === message.topic) ?? message.topic);
    this.schedule();
  }

  /** Return the topics to subscribe to now. */
  subscribed(): string[] {
    return this.isHidden ? [] : this.topics();
  }

  private subscribe(fresh: string[] = []): void {
    const topics = this.subscribed();
    const set = JSON.stringify(topics);
    if (!this.socket.isOpen || (set === this.sent && fresh.length === 0)) return;
    const message = fresh.length > 0 ? { subscribe: topics, fresh } : { subscribe: topics };
    if (this.socket.send(message)) {
      this.sent = set;
      this.subscribedAt = this.now();
    }
  }

  private schedule(): void {
    if (this.isScheduled) return;
    this.isScheduled = true;
    this.frame(() => this.flush());
  }

  private flush(): void {
    this.isScheduled = false;
    const topics = [...this.changed];
    this.changed.clear();
    for (const topic of topics) {
      for (const listener of [...(this.listeners.get(topic) ?? [])]) {
        try {
          listener(this.state(topic));
        } catch (error) {
          // A failing view must not stop the others.
          console.error(error);
        }
      }
    }
  }
}
