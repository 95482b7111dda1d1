import { telemetryDropped } from './metrics.ts'
import { ATTRIBUTE } from './telemetry-names.ts'

/**
 * Spans for the receivers of projects. A process has the targets of all projects; the spans of a unit of work of such a project
 * are kept in memory until the work is settled, in the form of OTLP JSON.
 */

/** Kinds of spans, by the first word of their names. */
const KIND_OF_NAME = {
  invoke_agent: 'agent',
  chat: 'model',
  execute_tool: 'tool',
  retrieval: 'retrieval',
  search: 'retrieval',
  embeddings: 'embeddings',
  search_memory: 'memory',
  create_memory: 'memory',
  update_memory: 'memory',
  upsert_memory: 'memory',
  delete_memory: 'memory',
  run: 'run',
  node: 'node',
  fire: 'firing',
  task: 'task',
  ingest: 'ingestion',
  eval: 'evaluation',
  deliver: 'delivery',
} as const

export const SPAN_KINDS = [
  'agent',
  'model',
  'tool',
  'retrieval',
  'embeddings',
  'memory',
  'run',
  'node',
  'firing',
  'task',
  'ingestion',
  'evaluation',
  'delivery',
  'request',
] as const
export type SpanKindName = (typeof SPAN_KINDS)[number]

/** Which spans a project sends to its receiver. */
export type SpanTarget = {
  sample_ratio: number
  content: 'none' | 'full'
  /** Empty for all. */
  kinds: ReadonlySet<SpanKindName>
}

/** Targets of projects, as this process read them. */
export const spanTargets = new Map<string, SpanTarget>()

type Values = Readonly<Record<string, string | number | boolean | readonly string[]>>

/** Messages of a model call by the names of their attributes. */
export type CallContent = Readonly<Record<string, string>>

/** Returns the bytes of content. */
export const sizeOfContent = (content: CallContent | null): number =>
  content === null ? 0 : Object.values(content).reduce((sum, text) => sum + Buffer.byteLength(text), 0)

type SpanRef = { traceId: string; spanId: string }

/** A span that may not have ended. */
export type CapturedSpan = SpanRef & {
  name: string
  /** As in OTLP: 1 internal, 2 server, 3 client. */
  kind: number
  parentSpanId: string | null
  startedAt: number
  endedAt: number
  isFailed: boolean
  attributes: Values
  links: readonly SpanRef[]
  events: readonly { name: string; at: number; attributes: Values }[]
  /** Attributes that only the receiver of the project may get. */
  content: CallContent | null
}

/** A span in progress. */
type OpenSpan = { spanId: string; captured(): CapturedSpan }

/** Outcome of the work for its root, which ends after the work is settled. */
export type RootNote = {
  /** Null removes an attribute. */
  attributes?: Readonly<Record<string, Values[string] | null | undefined>>
  error?: string | null
}

/** Spans of one unit of work. Later ones are dropped. */
const MAX_SPANS = 1000

/** Bytes of content of one unit of work. Later spans have none. */
const MAX_CONTENT = 1 << 20

/** The spans of a unit of work for the receiver of its project. */
export class SpanCapture {
  readonly project: string
  readonly target: SpanTarget
  readonly #open = new Set<OpenSpan>()
  /** The first span, which the others are below. It is never dropped. */
  #root: OpenSpan | null = null
  readonly #ended: CapturedSpan[] = []
  #contentSize = 0
  #isClosed = false

  constructor(project: string, target: SpanTarget) {
    this.project = project
    this.target = target
  }

  /** Whether spans may have content. */
  get takesContent(): boolean {
    return this.target.content === 'full' && !this.#isClosed && this.#contentSize < MAX_CONTENT
  }

  /** Counts content of a span; false if it is not taken. */
  addContent(content: CallContent): boolean {
    if (!this.takesContent) return false
    this.#contentSize += sizeOfContent(content)
    return this.#contentSize <= MAX_CONTENT
  }

  start(span: OpenSpan): void {
    if (this.#isClosed) return
    this.#root ??= span
    if (this.#open.size < MAX_SPANS) this.#open.add(span)
    else telemetryDropped.inc({ reason: 'unit' })
  }

  end(span: OpenSpan): void {
    if (!this.#open.delete(span) || this.#isClosed) return
    if (this.#ended.length < MAX_SPANS || span === this.#root) this.#ended.push(span.captured())
    else telemetryDropped.inc({ reason: 'unit' })
  }

  /** Ends the capture after its spans are written. */
  close(): void {
    this.#isClosed = true
    this.#open.clear()
    this.#ended.length = 0
  }

  /**
   * Returns the spans of the kinds that are sent, open ones as if they ended here; a child of another span gets the nearest sent parent,
   * and of a dropped one the root.
   */
  spans(root: RootNote = {}, rootOnly = false): CapturedSpan[] {
    const all = [...this.#ended, ...[...this.#open].map(span => span.captured())]
    const byId = new Map(all.map(span => [span.spanId, span]))
    const { kinds } = this.target
    const rootId = this.#root?.spanId ?? null
    const isRoot = ({ spanId }: CapturedSpan) => spanId === rootId
    const isSent = (span: CapturedSpan) =>
      (kinds.size === 0 || kinds.has(spanKind(span.name))) && (!rootOnly || isRoot(span))
    const parentOf = (span: CapturedSpan): string | null => {
      let below = span
      while (!isRoot(below)) {
        const above = byId.get(below.parentSpanId ?? '') ?? byId.get(rootId ?? '')
        if (!above || isSent(above)) return above?.spanId ?? null
        below = above
      }
      return below.parentSpanId
    }
    return all.filter(isSent).map(span => {
      return { ...(isRoot(span) ? withNote(span, root) : span), parentSpanId: parentOf(span) }
    })
  }
}

const spanKind = (name: string): SpanKindName => {
  const space = name.indexOf(' ')
  const word = space < 0 ? name : name.slice(0, space)
  return Object.hasOwn(KIND_OF_NAME, word) ? KIND_OF_NAME[word as keyof typeof KIND_OF_NAME] : 'request'
}

const withNote = (span: CapturedSpan, { attributes, error = null }: RootNote): CapturedSpan => ({
  ...span,
  isFailed: span.isFailed || error !== null,
  attributes: Object.fromEntries(
    Object.entries({ ...span.attributes, ...attributes, ...(error !== null && { [ATTRIBUTE.error]: error }) }).flatMap(
      ([name, value]) => (value === null || value === undefined ? [] : [[name, value]]),
    ),
  ),
})

type OtlpValue =
  | { stringValue: string }
  | { boolValue: boolean }
  | { intValue: string }
  | { doubleValue: number }
  | { arrayValue: { values: OtlpValue[] } }

/** An attribute in the form of OTLP JSON. */
export type OtlpAttribute = { key: string; value: OtlpValue }

const otlpValue = (value: Values[string]): OtlpValue => {
  if (typeof value === 'string') return { stringValue: value }
  if (typeof value === 'boolean') return { boolValue: value }
  if (typeof value === 'number')
    return Number.isSafeInteger(value) ? { intValue: String(value) } : { doubleValue: value }
  return { arrayValue: { values: value.map(otlpValue) } }
}

/** Returns attributes in the form of OTLP JSON; numbers that JSON does not have are omitted. */
export const otlpAttributes = (values: Values): OtlpAttribute[] =>
  Object.entries(values)
    .filter(([, value]) => typeof value !== 'number' || Number.isFinite(value))
    .map(([key, value]) => ({ key, value: otlpValue(value) }))

/** Returns a time of milliseconds in nanoseconds, in the whole microseconds of its number. */
const nanoseconds = (ms: number): string => `${Math.round(ms * 1000)}000`

const FAILED = 2

/** Returns a span in the form of OTLP JSON. */
export const otlpSpan = (span: CapturedSpan) => ({
  traceId: span.traceId,
  spanId: span.spanId,
  ...(span.parentSpanId !== null && { parentSpanId: span.parentSpanId }),
  name: span.name,
  kind: span.kind,
  startTimeUnixNano: nanoseconds(span.startedAt),
  endTimeUnixNano: nanoseconds(span.endedAt),
  attributes: otlpAttributes(span.attributes),
  events: span.events.map(({ name, at, attributes }) => ({
    name,
    timeUnixNano: nanoseconds(at),
    attributes: otlpAttributes(attributes),
  })),
  links: span.links.map(({ traceId, spanId }) => ({ traceId, spanId, attributes: [] })),
  status: span.isFailed ? { code: FAILED } : {},
})
