import { AsyncLocalStorage } from 'node:async_hooks'
import type { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http'
import type { Resource } from '@opentelemetry/resources'
import { systemTime } from './clock.ts'
import { type Config, ConfigError } from './config.ts'
import { AppError, AttemptEndedError } from './errors.ts'
import { settledWithin } from './event-loop.ts'
import { HOLDER } from './holder.ts'
import type { Logger } from './log.ts'
import { telemetryDropped } from './metrics.ts'
import { projectLabels } from './project-labels.ts'
import { uniqueBytes } from './random-block.ts'
import { release } from './release.ts'
import {
  type CallContent,
  type CapturedSpan,
  SpanCapture,
  type SpanTarget,
  sizeOfContent,
  spanTargets,
} from './span-targets.ts'
import { hrTime, MetricsExport } from './telemetry-metrics.ts'
import { ATTRIBUTE, MUSTER } from './telemetry-names.ts'

/**
 * Traces, exported over OTLP. All spans are made here, without automatic instrumentation, and only here are the packages of
 * OpenTelemetry used: they are loaded when an endpoint is configured. A span is a light record until its batch is exported.
 * Spans contain no content: names, ids, counts and catalogued codes only. Spans of a project with its own target are also kept
 * for it (span-targets.ts), whether or not they are exported, and only these may have content.
 */

type Value = string | number | boolean | string[]

/** Attributes of a span. Null and undefined are omitted. */
export type Attributes = Readonly<Record<string, Value | null | undefined>>

/** The context that is stored with work, in the form of the header `traceparent`. */
export type StoredContext = {
  /** Several are separated by spaces: of the work, and of what joined it, which is linked. */
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
  /** Request whose spans, in a new trace, name it in all processes. Only for an ID of ours: a client decides no export. */
  request?: string
  /** Context that a client sent: its parent if trusted, otherwise a link. */
  incoming?: { context: string | null; trusted: boolean }
  /** Whether it starts a unit of work: without a sampled trace, all spans of the unit are kept if it fails or takes long. */
  unit?: boolean
  /** Whether requests to other hosts below it have spans. */
  requests?: boolean
  /** Whether model calls below it may have content: the content of the work is kept. Default: as the span above. */
  content?: boolean
  /** External ID of the end user whose work it is, for it and all spans below it. */
  user?: string | null
}

type SpanId = { readonly traceId: string; readonly spanId: string; readonly sampled: boolean }

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

/** Layers of attributes of a span before they are merged: the span of a long request is noted by each call in it. */
const MAX_LAYERS = 32

/** Values of the last 13 digits of a trace ID, which decide whether it is sampled. They are exact in a number. */
const SAMPLED_RANGE = 16 ** 13

/** Bytes of content in the queue of a process. Beyond them, spans are queued without their content. */
const MAX_QUEUED_CONTENT = 16 << 20

/** Bytes of content in a batch. */
const MAX_BATCH_CONTENT = 4 << 20

/** Time in which drops are logged at most once. */
const DROP_LOG_MS = 60_000

/** Length of a context. */
const CONTEXT_CHARACTERS = 55

const KINDS = { internal: 0, server: 1, client: 2 }

const TRACEPARENT = /^(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})$/

const NO_CONTEXTS: readonly (SpanId | null)[] = []

const active = new AsyncLocalStorage<Span>()

/** The tracer with an exporter, and the tracer of a process with targets of projects only. */
let exporting: Tracer | null = null
let capturing: Tracer | null = null

let tracer: Tracer | null = null

const selectTracer = (): void => {
  tracer = exporting ?? (spanTargets.size > 0 ? capturing : null)
}

/** Changes the targets of projects of this process. */
export function changeSpanTargets(
  change: (targets: Map<string, SpanTarget>) => void,
  { config, log }: { config: Pick<Config, 'OTEL_CAPTURE_USER'>; log: Logger },
): void {
  change(spanTargets)
  const user = config.OTEL_CAPTURE_USER
  if (capturing?.captures.user !== user)
    capturing = new Tracer({
      exporter: null,
      sampler: { ratio: 0, followsParent: true },
      namesRequests: false,
      captures: { content: false, user },
      log,
    })
  selectTracer()
}

/** Returns the capture of the unit of work of this async context; null if its project has no target, or does not sample it. */
export const currentCapture = (): SpanCapture | null => (tracer === null ? null : (active.getStore()?.capture ?? null))

/** Whether spans have the end user, which the statements that load work then read. */
export const capturesUser = (): boolean => tracer?.captures.user === true

/** Names the end user of the current span and of the spans below it. */
export const noteUser = (externalId: string | null | undefined): void => {
  if (capturesUser()) currentSpan()?.share({ [ATTRIBUTE.user]: externalId })
}

/** Whether spans are made. */
export const isTracing = (): boolean => tracer !== null

/** Whether this process exports traces, and how many spans it has not exported. */
export const telemetryStatus = (): { enabled: boolean; dropped: number } => ({
  enabled: exporting !== null,
  dropped: exporting?.droppedCount ?? 0,
})

/** Returns the span of this async context, undefined without telemetry. */
export const currentSpan = (): Span | undefined => (tracer === null ? undefined : active.getStore())

/** Returns the context to store with work that this async context creates; null without telemetry. */
export const traceContext = (): string | null => (tracer === null ? null : (active.getStore()?.context ?? null))

/**
 * Returns the context to store with work of several units. Without a span, units of a project with a target are joined by a parent
 * that is not sent.
 */
export const joiningContext = (project: string): string | null =>
  traceContext() ??
  (spanTargets.has(project) ? `00-${uniqueBytes(16).toString('hex')}-${uniqueBytes(8).toString('hex')}-00` : null)

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
    return await active.run(span, work, span)
  } catch (error) {
    if (!(error instanceof AttemptEndedError)) span.fail(error instanceof AppError ? error.code : 'INTERNAL_ERROR')
    throw error
  } finally {
    span.end()
  }
}

function parseContext(text: string | null | undefined): SpanId | null {
  if (!text || !TRACEPARENT.test(text)) return null
  const flags = Number.parseInt(text.slice(53), 16)
  return { traceId: text.slice(3, 35), spanId: text.slice(36, 52), sampled: (flags & 1) === 1 }
}

/** Returns the stored contexts of work, its own first. */
const parseContexts = (text: string): (SpanId | null)[] =>
  text.length === CONTEXT_CHARACTERS ? [parseContext(text)] : text.split(' ').map(parseContext)

/** Spans of one process for one unit of work, in one trace. */
class Unit {
  readonly tracer: Tracer
  readonly root: Span
  readonly sampled: boolean
  /** Its spans for the receiver of its project. */
  readonly capture: SpanCapture | null
  #fate: 'open' | 'kept' | 'dropped' = 'open'
  #held: Span[] = []
  readonly #zero = systemTime() - performance.now()
  readonly #bits: number
  #traceId: string | null

  /** `above`: what the unit is part of; `origin`: what decides whether it is sampled. */
  constructor(tracer: Tracer, root: Span, start: SpanStart, above: SpanId | null, origin: SpanId | null) {
    this.tracer = tracer
    this.root = root
    this.#traceId = above?.traceId ?? start.request?.replaceAll('-', '') ?? null
    this.#bits = this.#traceId
      ? Number.parseInt(this.#traceId.slice(-13), 16)
      : Math.floor(Math.random() * SAMPLED_RANGE)
    this.sampled = tracer.samples(this.#bits, origin?.sampled ?? null)
    this.capture = captureFor(start, this.#bits)
  }

  get traceId(): string {
    this.#traceId ??= newTraceId(this.#bits)
    return this.#traceId
  }

  get fate(): 'open' | 'kept' | 'dropped' {
    return this.#fate
  }

  /** Spans that wait for the end of the unit. */
  get heldCount(): number {
    return this.#held.length
  }

  hold(span: Span): void {
    this.#held.push(span)
  }

  /** Decides about the spans of the unit, and returns those that wait. */
  settle(fate: 'kept' | 'dropped'): Span[] {
    this.#fate = fate
    const held = this.#held
    this.#held = []
    return held
  }

  now(): number {
    return this.#zero + performance.now()
  }
}

/** Attributes that replace those below them. They are merged when a span is exported, which most are not. */
type Layer = { readonly values: Attributes; readonly below: Layer | null; readonly depth: number }

function layered(attributes: Attributes | undefined, below: Layer | null): Layer | null {
  if (attributes === undefined) return below
  const values = isShort(attributes) ? attributes : present(attributes)
  const depth = below === null ? 1 : below.depth + 1
  return depth > MAX_LAYERS
    ? { values: Object.assign(merged(below), present(values)), below: null, depth: 1 }
    : { values, below, depth }
}

const merged = (layer: Layer | null): Record<string, Value> =>
  layer === null ? {} : Object.assign(merged(layer.below), present(layer.values))

/**
 * An operation in a trace, until it ends. Most spans are not exported: IDs are made when they are read, and attributes are
 * not copied, so callers do not change them.
 */
export class Span {
  readonly parent: SpanId | null
  readonly startedAt: number
  /** Whether requests to other hosts below it have spans. */
  readonly hasRequests: boolean
  /** Whether content of it is exported: of a sampled trace only, because content of other spans would wait in memory. */
  readonly hasContent: boolean
  readonly #kind: number
  readonly #unit: Unit
  readonly #links: SpanId[] | null
  #name: string
  #spanId: string | null = null
  #shared: Layer | null
  #attributes: Layer | null
  #events: { name: string; at: number; attributes: Record<string, Value> }[] | null = null
  /** Content that is exported. */
  #content: CallContent | null = null
  /** Content for the receiver of its project. */
  #captured: CallContent | null = null
  #endedAt = 0
  #isFailed = false

  constructor(tracer: Tracer, start: SpanStart) {
    const { name, kind = 'internal', attributes, shared, from, incoming, unit } = start
    const above = active.getStore() ?? null
    const contexts = from?.context ? parseContexts(from.context) : NO_CONTEXTS
    const stored = contexts.length > 0 ? contexts[0] : null
    const sent = incoming ? parseContext(incoming.context) : null
    const given = incoming?.trusted ? sent : from && stored && isRecent(from) ? stored : null
    const parent = given ?? (from || incoming ? null : above)
    const over = parent !== null && (parent === above || parent.traceId === above?.traceId) ? above : null
    this.parent = parent
    this.#links =
      stored || sent ? ([...contexts, sent].filter(link => link !== null && link !== parent) as SpanId[]) : null
    this.#name = short(name)
    this.#kind = KINDS[kind]
    this.#unit = over && !unit ? over.#unit : new Unit(tracer, this, start, parent, parent ?? stored)
    this.startedAt = this.#unit.now()
    this.hasRequests = start.requests === true
    this.hasContent = tracer.captures.content && this.sampled && (start.content ?? over?.hasContent === true)
    this.#shared = layered(shared, over === null ? null : over.#shared)
    const request = stored !== null && tracer.namesRequests ? requestOf(stored.traceId) : null
    if (request !== null) this.#shared = layered({ [MUSTER.request]: request }, this.#shared)
    if (start.user && tracer.captures.user) this.#shared = layered({ [ATTRIBUTE.user]: start.user }, this.#shared)
    this.#attributes = layered(attributes, this.#shared)
    this.#unit.capture?.start(this)
  }

  get capture(): SpanCapture | null {
    return this.#unit.capture
  }

  /** Whether content of model calls is exported, or sent to the receiver of the project. */
  get takesContent(): boolean {
    return this.hasContent || this.capture?.takesContent === true
  }

  /** The span for the receiver of its project; an open span as if it ended now. */
  captured(): CapturedSpan {
    const { traceId, spanId, startedAt, attributes } = this
    return {
      traceId,
      spanId,
      parentSpanId: this.parent?.spanId ?? null,
      name: this.#name,
      kind: this.#kind + 1,
      startedAt,
      endedAt: this.#endedAt || this.#unit.now(),
      isFailed: this.#isFailed,
      attributes,
      links: this.#links ?? [],
      events: this.#events ?? [],
      content: this.#captured,
    }
  }

  get traceId(): string {
    return this.#unit.traceId
  }

  get spanId(): string {
    this.#spanId ??= uniqueBytes(8).toString('hex')
    return this.#spanId
  }

  get sampled(): boolean {
    return this.#unit.sampled
  }

  /** The span as the header `traceparent`. */
  get context(): string {
    return `00-${this.traceId}-${this.spanId}-${this.sampled ? '01' : '00'}`
  }

  get attributes(): Readonly<Record<string, Value>> {
    return merged(this.#attributes)
  }

  rename(name: string): void {
    this.#name = short(name)
  }

  set(attributes: Attributes): void {
    this.#attributes = layered(attributes, this.#attributes)
  }

  /** Sets content, which its caller has cut. */
  setContent(content: CallContent): void {
    if (this.hasContent) this.#content = { ...this.#content, ...content }
    if (this.capture?.addContent(content)) this.#captured = { ...this.#captured, ...content }
  }

  /** Bytes of the content that is exported. */
  get contentSize(): number {
    return sizeOfContent(this.#content)
  }

  /** Sets attributes of the span and of spans that start below it from now on. */
  share(attributes: Attributes): void {
    this.#shared = layered(attributes, this.#shared)
    this.set(attributes)
  }

  addEvent(name: string, attributes: Attributes): void {
    this.#events ??= []
    this.#events.push({ name, at: this.#unit.now(), attributes: present(attributes) })
  }

  /** Marks the span as failed, with a catalogued code. */
  fail(code: string): void {
    this.#isFailed = true
    this.set({ [ATTRIBUTE.error]: code })
  }

  /** Ends the span. Its unit is exported if the trace is sampled or the unit is kept. */
  end(): void {
    if (this.#endedAt !== 0) return
    const unit = this.#unit
    this.#endedAt = unit.now()
    unit.capture?.end(this)
    if (!unit.tracer.isExporting) return
    // Before its own export: a full buffer must not lose the root of a unit that is kept.
    if (unit.root === this) unit.tracer.decide(unit, this.#isFailed || this.#isLong)
    if (unit.sampled || unit.fate === 'kept') unit.tracer.export(this)
    else if (unit.fate === 'open') unit.tracer.hold(this, unit)
  }

  /** Ends the span of a unit that is exported only if its trace is sampled. */
  endUnkept(): void {
    const unit = this.#unit
    if (!unit.sampled) unit.tracer.decide(unit, false)
    this.end()
  }

  get #isLong(): boolean {
    return this.#kind !== KINDS.server && this.#endedAt - this.startedAt > LONG_MS
  }

  /** The span as the exporter takes it, without references to other spans. */
  readable(scope: Scope, withContent: boolean): ReadableSpan {
    const context = contextOf(this, false)
    return {
      name: this.#name,
      kind: this.#kind,
      spanContext: () => context,
      ...(this.parent && { parentSpanContext: contextOf(this.parent) }),
      startTime: hrTime(this.startedAt),
      endTime: hrTime(this.#endedAt),
      duration: hrTime(this.#endedAt - this.startedAt),
      status: { code: this.#isFailed ? 2 : 0 },
      attributes: withContent ? { ...this.attributes, ...this.#content } : this.attributes,
      links: (this.#links ?? []).map(link => ({ context: contextOf(link) })),
      events: (this.#events ?? []).map(event => ({ ...event, time: hrTime(event.at) })),
      ended: true,
      droppedAttributesCount: 0,
      droppedEventsCount: 0,
      droppedLinksCount: 0,
      ...scope,
    }
  }
}

const contextOf = ({ traceId, spanId }: SpanId, isRemote = true) => ({ traceId, spanId, traceFlags: 1, isRemote })

/** Returns the target of the project of a span. */
function targetOf({ shared, attributes }: SpanStart): [project: string, target: SpanTarget] | null {
  if (spanTargets.size === 0) return null
  const project = String(shared?.[MUSTER.project] ?? attributes?.[MUSTER.project] ?? '')
  const target = spanTargets.get(project)
  return target ? [project, target] : null
}

function captureFor(start: SpanStart, bits: number): SpanCapture | null {
  const found = targetOf(start)
  return found && bits < found[1].sample_ratio * SAMPLED_RANGE ? new SpanCapture(...found) : null
}

type ReadableSpan = Parameters<OTLPTraceExporter['export']>[0][number]

type Scope = Pick<ReadableSpan, 'resource' | 'instrumentationScope'>

/** Form of the IDs that the service gives to requests. */
const REQUEST_TRACE = /^(.{8})(.{4})(4.{3})([89ab].{3})(.{12})$/

/** Returns the ID of a trace that no request began, of another form. Its last digits are `bits`. */
function newTraceId(bits: number): string {
  const bytes = uniqueBytes(10)
  bytes[6] &= 0x0f
  return bytes.toString('hex').slice(0, 19) + bits.toString(16).padStart(13, '0')
}

/** Returns the ID of the request that began a trace; null if none did. */
const requestOf = (traceId: string): string | null => REQUEST_TRACE.exec(traceId)?.slice(1).join('-') ?? null

const isRecent = ({ at, linked }: StoredContext): boolean =>
  !linked && systemTime() - Date.parse(at) < MAX_PARENT_AGE_MS

function present(attributes: Attributes | undefined): Record<string, Value> {
  const given: Record<string, Value> = {}
  for (const name in attributes) {
    const value = attributes[name]
    if (value === null || value === undefined) continue
    given[name] = typeof value === 'string' ? short(value) : Array.isArray(value) ? value.map(short) : value
  }
  return given
}

/** Whether no text must be cut. */
function isShort(attributes: Attributes): boolean {
  for (const name in attributes) {
    const value = attributes[name]
    if (typeof value === 'string' ? isLong(value) : Array.isArray(value) && value.some(isLong)) return false
  }
  return true
}

const isLong = (text: string): boolean => text.length > MAX_CHARACTERS

/** Cuts a text. A copy, because a slice keeps its whole text in memory. */
const short = (text: string): string => (isLong(text) ? Buffer.from(text.slice(0, MAX_CHARACTERS)).toString() : text)

/** Whether new traces are sampled, and whether the decision of a parent holds. */
type Sampler = { ratio: number; followsParent: boolean }

type Pipeline = {
  exporter: Pick<OTLPTraceExporter, 'export' | 'shutdown'>
  scope: Scope
  limits: { queued: number; batch: number; delayMs: number; timeoutMs: number }
}

type TracerOptions = {
  sampler: Sampler
  /** Whether all IDs of traces are ours, so that the form of one shows that a request began it. */
  namesRequests: boolean
  captures: { content: boolean; user: boolean }
  log: Logger
} & (Pipeline | { exporter: null })

/** Samples units of work and exports their spans in the background. */
class Tracer {
  readonly #options: TracerOptions
  #queue: { span: ReadableSpan; content: number }[] = []
  /** Bytes of content in the queue. */
  #queuedContent = 0
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
      const given = start(subject)
      if (!this.isExporting && !active.getStore() && !targetOf(given)) return null
      return new Span(this, given)
    } catch (error) {
      this.#options.log.error({ err: error }, 'span not started')
      return null
    }
  }

  /** Whether its spans go to the collector of the deployment. */
  get isExporting(): boolean {
    return this.#options.exporter !== null
  }

  get droppedCount(): number {
    return this.#droppedCount
  }

  get namesRequests(): boolean {
    return this.#options.namesRequests
  }

  get captures(): TracerOptions['captures'] {
    return this.#options.captures
  }

  /** Whether a trace is sampled, by bits of its ID, or by the decision about its parent. */
  samples(bits: number, origin: boolean | null): boolean {
    const { ratio, followsParent } = this.#options.sampler
    return origin !== null && followsParent ? origin : bits < ratio * SAMPLED_RANGE
  }

  /** Keeps a span until its unit ends. */
  hold(span: Span, unit: Unit): void {
    if (this.#heldCount >= MAX_HELD_SPANS || unit.heldCount >= MAX_HELD_OF_UNIT) this.#drop('buffer', 1)
    else {
      this.#heldCount++
      unit.hold(span)
    }
  }

  /** Exports the held spans of a unit, or forgets them. */
  decide(unit: Unit, keeps: boolean): void {
    if (unit.fate !== 'open') return
    const isKept = keeps && (unit.sampled || this.#mayKeep(unit))
    const held = unit.settle(isKept ? 'kept' : 'dropped')
    this.#heldCount -= held.length
    if (isKept) for (const span of held) this.export(span)
  }

  /** Whether the project of an unsampled unit has not used its share of this second. */
  #mayKeep({ root, heldCount }: Unit): boolean {
    const second = Math.floor(performance.now() / 1000)
    if (second !== this.#keptSecond) this.#kept.clear()
    this.#keptSecond = second
    const project = String(root.attributes[MUSTER.project] ?? '')
    const count = this.#kept.get(project) ?? 0
    this.#kept.set(project, count + 1)
    if (count < MAX_KEPT_PER_SECOND) return true
    this.#drop('limit', heldCount + 1)
    return false
  }

  get #pipeline(): Pipeline {
    return this.#options as Pipeline
  }

  export(span: Span): void {
    const { limits, scope } = this.#pipeline
    if (this.#queue.length >= limits.queued) this.#drop('queue', 1)
    else {
      const size = span.contentSize
      const fits = this.#queuedContent + size <= MAX_QUEUED_CONTENT
      this.#queue.push({ span: span.readable(scope, fits), content: fits ? size : 0 })
      if (fits) this.#queuedContent += size
    }
    this.#continue()
  }

  /** Starts a batch if it is full, and its timer otherwise. */
  #continue(): void {
    const { batch, delayMs } = this.#pipeline.limits
    if (this.#exporting) return
    if (this.#queue.length >= batch || this.#queuedContent >= MAX_BATCH_CONTENT) this.#exportBatches()
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
    await settledWithin(Math.max(100, deadline - performance.now()), this.#pipeline.exporter.shutdown()).catch(() => {})
  }

  #exportBatches(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    if (this.#queue.length === 0) return
    this.#exporting = this.#detached(() => this.#exportBatch(this.#nextBatch())).then(() => {
      this.#exporting = null
      if (this.#queue.length > 0) this.#continue()
    })
  }

  #nextBatch(): ReadableSpan[] {
    let content = 0
    let count = 0
    for (const each of this.#queue.slice(0, this.#pipeline.limits.batch)) {
      if (content + each.content > MAX_BATCH_CONTENT) break
      content += each.content
      count++
    }
    this.#queuedContent -= content
    return this.#queue.splice(0, count).map(({ span }) => span)
  }

  async #exportBatch(spans: ReadableSpan[]): Promise<void> {
    const { exporter, limits } = this.#pipeline
    const exported = await settledWithin(
      limits.timeoutMs + 1000,
      new Promise<boolean>(resolve => {
        exporter.export(spans, ({ code }) => resolve(code === 0))
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
    if (traces !== null && config.OTEL_CAPTURE_CONTENT)
      log.warn('OTEL_CAPTURE_CONTENT is set: messages of model calls are exported with traces')
    if (traces !== null)
      exporting = new Tracer({
        exporter: new OTLPTraceExporter({ url: traces, timeoutMillis: timeoutMs, headers }),
        scope,
        sampler: samplerOf(config),
        namesRequests: !config.OTEL_TRUST_INCOMING,
        captures: { content: config.OTEL_CAPTURE_CONTENT, user: config.OTEL_CAPTURE_USER },
        limits: {
          queued: config.OTEL_BSP_MAX_QUEUE_SIZE,
          batch: Math.min(config.OTEL_BSP_MAX_EXPORT_BATCH_SIZE, config.OTEL_BSP_MAX_QUEUE_SIZE),
          delayMs: config.OTEL_BSP_SCHEDULE_DELAY,
          timeoutMs,
        },
        log,
      })
    selectTracer()
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
      const closing = [exporting, metrics]
      exporting = null
      metrics = null
      selectTracer()
      const limitMs = Math.min(Math.max(graceMs, MIN_CLOSE_MS), timeoutMs)
      await Promise.all(closing.map(each => each?.close(limitMs)))
    },
  }
}
