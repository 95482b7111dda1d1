import { AsyncLocalStorage } from 'node:async_hooks'
import type { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http'
import type { Resource } from '@opentelemetry/resources'
import { systemClock } from './clock.ts'
import { type Config, ConfigError } from './config.ts'
import { AppError, AttemptEndedError } from './errors.ts'
import { settledWithin } from './event-loop.ts'
import { HOLDER } from './holder.ts'
import type { Logger } from './log.ts'
import { telemetryDropped } from './metrics.ts'
import { projectLabels } from './project-labels.ts'
import { uniqueBytes } from './random-block.ts'
import { release } from './release.ts'
import { hrTime, MetricsExport } from './telemetry-metrics.ts'
import { ATTRIBUTE, MUSTER } from './telemetry-names.ts'

/**
 * Traces, exported over OTLP. All spans are made here, without automatic instrumentation, and only here are the packages of
 * OpenTelemetry used: they are loaded when an endpoint is configured. A span is a light record until its batch is exported.
 * Spans contain no content: names, ids, counts and catalogued codes only.
 */

type Value = string | number | boolean | string[]

/** Attributes of a span. Null and undefined are omitted. */
export type Attributes = Readonly<Record<string, Value | null | undefined>>

/** The context that is stored with work, in the form of the header `traceparent`. */
export type StoredContext = {
  context: string | null
  /** When it was stored. */
  at: string
  /** Whether the work is linked to it, never its child. */
  linked?: boolean
}

/** What a span starts with. */
export type SpanStart = {
  name: string
  /** Default internal. */
  kind?: 'internal' | 'server' | 'client'
  attributes?: Attributes
  /** Attributes of the span and of all spans below it. */
  shared?: Attributes
  /** Context of the stored work that it executes: its parent if recent, otherwise a link. A link is sampled alike. */
  from?: StoredContext
  /** Context that a client sent: its parent if trusted, otherwise a link. */
  incoming?: { context: string | null; trusted: boolean }
  /** Whether it starts a unit of work: without a sampled trace, all spans of the unit are kept if it fails or takes long. */
  unit?: boolean
  /** Whether requests to other hosts below it have spans. */
  requests?: boolean
}

type SpanId = { traceId: string; spanId: string; sampled: boolean }

/** Age from which a stored context is linked. */
const MAX_PARENT_AGE_MS = 3_600_000

/** Spans of unsampled traces in memory until their unit ends. */
const MAX_HELD_SPANS = 20_000

/** Duration from which a unit is kept. */
const LONG_MS = 30_000

/** Time for the last export of a process that stops, if its work has used the grace period. */
const MIN_CLOSE_MS = 500

/** Held spans of one unit, of which there may be thousands. */
const MAX_HELD_OF_UNIT = 1000

/** Unsampled units of one project that are kept in a second, so that a tenant whose work fails does not fill the queue. */
const MAX_KEPT_PER_SECOND = 5

/** Characters of a name or value, which vendors and tenants may choose. */
const MAX_CHARACTERS = 256

/** Time in which drops are logged at most once. */
const DROP_LOG_MS = 60_000

const KINDS = { internal: 0, server: 1, client: 2 }

const TRACEPARENT = /^(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})$/

const active = new AsyncLocalStorage<Span>()

let tracer: Tracer | null = null

/** Whether spans are made. */
export const isTracing = (): boolean => tracer !== null

/** Whether this process exports traces, and how many spans it has not exported. */
export const telemetryStatus = (): { enabled: boolean; dropped: number } => ({
  enabled: tracer !== null,
  dropped: tracer?.droppedCount ?? 0,
})

/** Returns the span of this async context, undefined without telemetry. */
export const currentSpan = (): Span | undefined => (tracer === null ? undefined : active.getStore())

/** Returns the context to store with work that this async context creates; null without telemetry. */
export const traceContext = (): string | null => (tracer === null ? null : (active.getStore()?.context ?? null))

/**
 * Runs `work` within a span. An error that it throws is the error of the span. Without telemetry, `start` is not called and the
 * span is null.
 */
export const traced = <S, T>(
  start: (subject: S) => SpanStart,
  subject: S,
  work: (span: Span | null) => Promise<T>,
): Promise<T> => (tracer === null ? work(null) : runIn(tracer.start(start, subject), work))

/** Starts a span that the caller ends; null without telemetry. */
export const startSpan = <S>(start: (subject: S) => SpanStart, subject: S): Span | null =>
  tracer === null ? null : tracer.start(start, subject)

/** Runs `work` with a span as the parent of new spans. */
export const withSpan = <T>(span: Span | null, work: () => T): T => (span === null ? work() : active.run(span, work))

/** Attributes of the host of a URL; none without a valid one. */
export function hostAttributes(text: string | null): Attributes {
  const url = text === null ? null : URL.parse(text)
  if (!url) return {}
  const port = Number(url.port) || (url.protocol === 'https:' ? 443 : 80)
  return { [ATTRIBUTE.address]: url.hostname, [ATTRIBUTE.port]: port }
}

async function runIn<T>(span: Span | null, work: (span: Span | null) => Promise<T>): Promise<T> {
  if (span === null) return work(null)
  try {
    return await active.run(span, () => work(span))
  } catch (error) {
    if (!(error instanceof AttemptEndedError)) span.fail(error instanceof AppError ? error.code : 'INTERNAL_ERROR')
    throw error
  } finally {
    span.end()
  }
}

function parseContext(text: string | null | undefined): SpanId | null {
  const [, traceId, spanId, flags] = TRACEPARENT.exec(text ?? '') ?? []
  return traceId ? { traceId, spanId, sampled: (Number.parseInt(flags, 16) & 1) === 1 } : null
}

/** Spans of one process for one unit of work. */
type Unit = {
  root: Span
  sampled: boolean
  fate: 'open' | 'kept' | 'dropped'
  held: Span[]
  /** Time of the clock at which performance.now() was 0. */
  zero: number
}

/** An operation in a trace, until it ends. */
export class Span {
  readonly kind: number
  readonly traceId: string
  readonly spanId = uniqueBytes(8).toString('hex')
  readonly parent: SpanId | null
  readonly attributes: Record<string, Value> = {}
  readonly shared: Record<string, Value>
  readonly links: SpanId[] = []
  readonly events: { name: string; at: number; attributes: Record<string, Value> }[] = []
  readonly startedAt: number
  /** Whether requests to other hosts below it have spans. */
  readonly hasRequests: boolean
  readonly #unit: Unit
  readonly #tracer: Tracer
  #name: string
  #endedAt = 0
  #isFailed = false

  constructor(tracer: Tracer, start: SpanStart) {
    const { name, kind = 'internal', from, incoming, unit = false } = start
    const above = active.getStore()
    const stored = parseContext(from?.context)
    const sent = parseContext(incoming?.context)
    const given = incoming?.trusted ? sent : from && isRecent(from) ? stored : null
    const parent = given ?? (from || incoming ? null : (above?.id ?? null))
    for (const link of [stored, sent]) if (link && link !== parent) this.links.push(link)
    this.#name = short(name)
    this.kind = KINDS[kind]
    this.parent = parent
    this.traceId = parent?.traceId ?? uniqueBytes(16).toString('hex')
    this.#tracer = tracer
    this.#unit =
      above && above.traceId === this.traceId && !unit
        ? above.#unit
        : {
            root: this,
            sampled: tracer.samples(this.traceId, (parent ?? stored)?.sampled ?? null),
            fate: 'open',
            held: [],
            zero: systemClock.now().getTime() - performance.now(),
          }
    this.startedAt = this.#now()
    this.hasRequests = start.requests === true
    this.shared = { ...(parent && above?.traceId === this.traceId && above.shared), ...present(start.shared) }
    Object.assign(this.attributes, this.shared, present(start.attributes))
  }

  get id(): SpanId {
    return { traceId: this.traceId, spanId: this.spanId, sampled: this.#unit.sampled }
  }

  /** The span as the header `traceparent`. */
  get context(): string {
    return `00-${this.traceId}-${this.spanId}-${this.#unit.sampled ? '01' : '00'}`
  }

  rename(name: string): void {
    this.#name = short(name)
  }

  set(attributes: Attributes): void {
    Object.assign(this.attributes, present(attributes))
  }

  /** Sets attributes of the span and of spans that start below it from now on. */
  share(attributes: Attributes): void {
    const given = present(attributes)
    Object.assign(this.shared, given)
    Object.assign(this.attributes, given)
  }

  addEvent(name: string, attributes: Attributes): void {
    this.events.push({ name, at: this.#now(), attributes: present(attributes) })
  }

  /** Marks the span as failed, with a catalogued code. */
  fail(code: string): void {
    this.#isFailed = true
    this.attributes[ATTRIBUTE.error] = code
  }

  /** Ends the span. Its unit is exported if the trace is sampled or the unit is kept. */
  end(): void {
    if (this.#endedAt !== 0) return
    this.#endedAt = this.#now()
    const unit = this.#unit
    // Before its own export: a full buffer must not lose the root of a unit that is kept.
    if (unit.root === this) this.#tracer.decide(unit, this.#isFailed || this.#isLong)
    if (unit.sampled || unit.fate === 'kept') this.#tracer.export(this)
    else if (unit.fate === 'open') this.#tracer.hold(this, unit)
  }

  /** Ends the span of a unit that is exported only if its trace is sampled. */
  endUnkept(): void {
    if (!this.#unit.sampled) this.#tracer.decide(this.#unit, false)
    this.end()
  }

  get #isLong(): boolean {
    return this.kind !== KINDS.server && this.#endedAt - this.startedAt > LONG_MS
  }

  #now(): number {
    return this.#unit.zero + performance.now()
  }

  /** The span as the exporter takes it. */
  readable(scope: Scope): ReadableSpan {
    const { kind, parent, attributes } = this
    const contextOf = ({ traceId, spanId }: Pick<SpanId, 'traceId' | 'spanId'>, isRemote = true) => ({
      traceId,
      spanId,
      traceFlags: 1,
      isRemote,
    })
    return {
      name: this.#name,
      kind,
      spanContext: () => contextOf(this, false),
      ...(parent && { parentSpanContext: contextOf(parent) }),
      startTime: hrTime(this.startedAt),
      endTime: hrTime(this.#endedAt),
      duration: hrTime(this.#endedAt - this.startedAt),
      status: { code: this.#isFailed ? 2 : 0 },
      attributes,
      links: this.links.map(link => ({ context: contextOf(link) })),
      events: this.events.map(event => ({ ...event, time: hrTime(event.at) })),
      ended: true,
      droppedAttributesCount: 0,
      droppedEventsCount: 0,
      droppedLinksCount: 0,
      ...scope,
    }
  }
}

type ReadableSpan = Parameters<OTLPTraceExporter['export']>[0][number]

type Scope = Pick<ReadableSpan, 'resource' | 'instrumentationScope'>

const isRecent = ({ at, linked }: StoredContext): boolean =>
  !linked && systemClock.now().getTime() - new Date(at).getTime() < MAX_PARENT_AGE_MS

function present(attributes: Attributes | undefined): Record<string, Value> {
  const given: Record<string, Value> = {}
  for (const name in attributes) {
    const value = attributes[name]
    if (value === null || value === undefined) continue
    given[name] = typeof value === 'string' ? short(value) : Array.isArray(value) ? value.map(short) : value
  }
  return given
}

/** Cuts a text. A copy, because a slice keeps its whole text in memory. */
const short = (text: string): string =>
  text.length <= MAX_CHARACTERS ? text : Buffer.from(text.slice(0, MAX_CHARACTERS)).toString()

/** Whether new traces are sampled, and whether the decision of a parent holds. */
type Sampler = { ratio: number; followsParent: boolean }

type TracerOptions = {
  exporter: Pick<OTLPTraceExporter, 'export' | 'shutdown'>
  scope: Scope
  sampler: Sampler
  limits: { queued: number; batch: number; delayMs: number; timeoutMs: number }
  log: Logger
}

/** Samples units of work and exports their spans in the background. */
class Tracer {
  readonly #options: TracerOptions
  #queue: Span[] = []
  #heldCount = 0
  #keptSecond = 0
  /** Units that were kept in this second, by project. */
  readonly #kept = new Map<string, number>()
  #timer: NodeJS.Timeout | undefined
  #exporting: Promise<void> | null = null
  #droppedCount = 0
  #dropLoggedAt = Number.NEGATIVE_INFINITY
  /** Runs timers outside the async context of the span that starts them. */
  readonly #detached = AsyncLocalStorage.snapshot()

  constructor(options: TracerOptions) {
    this.#options = options
  }

  /** Starts a span; null if that fails, which must not fail the work. */
  start<S>(start: (subject: S) => SpanStart, subject: S): Span | null {
    try {
      return new Span(this, start(subject))
    } catch (error) {
      this.#options.log.error({ err: error }, 'span not started')
      return null
    }
  }

  get droppedCount(): number {
    return this.#droppedCount
  }

  samples(traceId: string, parent: boolean | null): boolean {
    const { ratio, followsParent } = this.#options.sampler
    if (parent !== null && followsParent) return parent
    // 52 of the random bits, which are exact in a number.
    return Number.parseInt(traceId.slice(-13), 16) < ratio * 2 ** 52
  }

  /** Keeps a span until its unit ends. */
  hold(span: Span, unit: Unit): void {
    if (this.#heldCount >= MAX_HELD_SPANS || unit.held.length >= MAX_HELD_OF_UNIT) this.#drop('buffer', 1)
    else {
      this.#heldCount++
      unit.held.push(span)
    }
  }

  /** Exports the held spans of a unit, or forgets them. */
  decide(unit: Unit, keeps: boolean): void {
    if (unit.fate !== 'open') return
    const isKept = keeps && (unit.sampled || this.#mayKeep(unit))
    unit.fate = isKept ? 'kept' : 'dropped'
    const { held } = unit
    unit.held = []
    this.#heldCount -= held.length
    if (isKept) for (const span of held) this.export(span)
  }

  /** Whether the project of an unsampled unit has not used its share of this second. */
  #mayKeep({ root, held }: Unit): boolean {
    const second = Math.floor(performance.now() / 1000)
    if (second !== this.#keptSecond) this.#kept.clear()
    this.#keptSecond = second
    const project = String(root.attributes[MUSTER.project] ?? '')
    const count = this.#kept.get(project) ?? 0
    this.#kept.set(project, count + 1)
    if (count < MAX_KEPT_PER_SECOND) return true
    this.#drop('limit', held.length + 1)
    return false
  }

  export(span: Span): void {
    const { queued, batch, delayMs } = this.#options.limits
    if (this.#queue.length >= queued) this.#drop('queue', 1)
    else this.#queue.push(span)
    if (this.#exporting) return
    if (this.#queue.length >= batch) this.#exportBatches()
    else this.#timer ??= this.#detached(() => setTimeout(() => this.#exportBatches(), delayMs).unref())
  }

  /** Exports the queued spans, for at most `limitMs`. */
  async close(limitMs: number): Promise<void> {
    const deadline = performance.now() + limitMs
    for (let remaining = limitMs; remaining > 0; remaining = deadline - performance.now()) {
      if (!this.#exporting) this.#exportBatches()
      if (!this.#exporting) break
      await settledWithin(remaining, this.#exporting)
    }
    clearTimeout(this.#timer)
    if (this.#queue.length > 0) this.#drop('shutdown', this.#queue.splice(0).length)
    await settledWithin(Math.max(100, deadline - performance.now()), this.#options.exporter.shutdown()).catch(() => {})
  }

  #exportBatches(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    if (this.#queue.length === 0) return
    this.#exporting = this.#detached(() => this.#exportBatch(this.#queue.splice(0, this.#options.limits.batch))).then(
      () => {
        this.#exporting = null
        const next = this.#queue.pop()
        // Starts the timer or the next batch.
        if (next) this.export(next)
      },
    )
  }

  async #exportBatch(spans: Span[]): Promise<void> {
    const { exporter, scope, limits } = this.#options
    const exported = await settledWithin(
      limits.timeoutMs + 1000,
      new Promise<boolean>(resolve => {
        exporter.export(
          spans.map(span => span.readable(scope)),
          ({ code }) => resolve(code === 0),
        )
      }).catch(() => false),
    )
    if (!exported) this.#drop('export', spans.length)
  }

  #drop(reason: 'buffer' | 'limit' | 'queue' | 'export' | 'shutdown', count: number): void {
    telemetryDropped.inc({ reason }, count)
    this.#droppedCount += count
    const now = performance.now()
    if (now - this.#dropLoggedAt < DROP_LOG_MS) return
    this.#dropLoggedAt = now
    this.#options.log.warn({ reason, dropped: this.#droppedCount }, 'spans dropped')
  }
}

async function loadPackages() {
  try {
    const [{ OTLPTraceExporter }, { OTLPMetricExporter }, { resourceFromAttributes }] = await Promise.all([
      import('@opentelemetry/exporter-trace-otlp-http'),
      import('@opentelemetry/exporter-metrics-otlp-http'),
      import('@opentelemetry/resources'),
    ])
    return { OTLPTraceExporter, OTLPMetricExporter, resourceFromAttributes }
  } catch (error) {
    if ((error as { code?: string }).code !== 'ERR_MODULE_NOT_FOUND') throw error
    throw new ConfigError(
      'OTEL_EXPORTER_OTLP_ENDPOINT',
      'is set, but the packages of OpenTelemetry are not installed: run `npm i`',
    )
  }
}

/** Addresses of the collector; null for a signal that is not exported. */
function endpointsOf(config: Config): { traces: string | null; metrics: string | null } {
  const { OTEL_EXPORTER_OTLP_ENDPOINT: base, OTEL_SDK_DISABLED } = config
  if (OTEL_SDK_DISABLED) return { traces: null, metrics: null }
  const at = (signal: string) => base && `${base.replace(/\/$/, '')}/v1/${signal}`
  return {
    traces: config.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT ?? at('traces'),
    metrics: config.OTEL_EXPORTER_OTLP_METRICS_ENDPOINT ?? at('metrics'),
  }
}

const samplerOf = ({ OTEL_TRACES_SAMPLER: name, OTEL_TRACES_SAMPLER_ARG: ratio }: Config): Sampler => {
  const own = name.replace('parentbased_', '')
  return {
    ratio: own === 'always_on' ? 1 : own === 'always_off' ? 0 : ratio,
    followsParent: own !== name,
  }
}

let metrics: MetricsExport | null = null

let openCount = 0

/**
 * Starts the telemetry of a process if an endpoint is configured. `close` exports the queued spans for at most `graceMs`.
 * @throws ConfigError if the packages are not installed
 */
export async function openTelemetry(
  config: Config,
  { role, log }: { role: 'web' | 'worker'; log: Logger },
): Promise<{ close(graceMs: number): Promise<void> }> {
  if (config.OTEL_METRICS_BY_PROJECT) projectLabels.enable()
  const endpoints = endpointsOf(config)
  if (endpoints.traces === null && endpoints.metrics === null) return { close: async () => projectLabels.disable() }
  const { OTLPTraceExporter, OTLPMetricExporter, resourceFromAttributes } = await loadPackages()
  const timeoutMs = config.OTEL_BSP_EXPORT_TIMEOUT
  const headers = config.OTEL_EXPORTER_OTLP_HEADERS
  const resource: Resource = resourceFromAttributes({
    'service.name': config.OTEL_SERVICE_NAME ?? `muster-${role}`,
    'service.version': release,
    'service.instance.id': HOLDER,
    'host.name': config.INSTANCE_ID,
    ...config.OTEL_RESOURCE_ATTRIBUTES,
  })
  const scope = { resource, instrumentationScope: { name: 'muster', version: release } }
  if (openCount++ === 0) {
    const { traces, metrics: metricsUrl } = endpoints
    if (traces !== null)
      tracer = new Tracer({
        exporter: new OTLPTraceExporter({ url: traces, timeoutMillis: timeoutMs, headers }),
        scope,
        sampler: samplerOf(config),
        limits: {
          queued: config.OTEL_BSP_MAX_QUEUE_SIZE,
          batch: Math.min(config.OTEL_BSP_MAX_EXPORT_BATCH_SIZE, config.OTEL_BSP_MAX_QUEUE_SIZE),
          delayMs: config.OTEL_BSP_SCHEDULE_DELAY,
          timeoutMs,
        },
        log,
      })
    if (metricsUrl !== null)
      metrics = new MetricsExport({
        exporter: new OTLPMetricExporter({ url: metricsUrl, timeoutMillis: timeoutMs, headers }),
        scope,
        intervalMs: config.OTEL_METRIC_EXPORT_INTERVAL,
        timeoutMs,
        log,
      })
  }
  return {
    async close(graceMs) {
      if (--openCount > 0) return
      projectLabels.disable()
      const closing = [tracer, metrics]
      tracer = null
      metrics = null
      const limitMs = Math.min(Math.max(graceMs, MIN_CLOSE_MS), timeoutMs)
      await Promise.all(closing.map(each => each?.close(limitMs)))
    },
  }
}
