import { z } from 'zod'
import { fileExceptionInTx } from '#control/exceptions/file-exception.ts'
import { DispatchedEvent, type EventSubscriber } from '#control/webhooks/event-subscribers.ts'
import { policyAllowsEvent } from '#control/webhooks/matching.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { eventLoopYielder } from '#core/base/event-loop.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import { type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import { rootMark, rootOf, triggersIn, withTriggerChain } from '#core/db/trigger-chain.ts'
import {
  briefShareOf,
  ExpressionError,
  evaluateBriefly,
  freshBudget,
  NotBriefError,
  truthy,
} from '#core/expressions/evaluate.ts'
import { type CompiledDocument, compileDocument } from '#core/iam/policy.ts'
import { workQueue } from '#core/queues/queue.ts'
import { handler } from '#core/work/handler.ts'
import { eventNames, eventTypes, isEventPattern, patternMatches } from '#core/writes/events.ts'
import type { Tx } from '#core/writes/writer.ts'
import { FanoutLimiter, type FanoutRoot } from './fanout.ts'
import { wakeFiring } from './fire.ts'
import { firingKind, triggerKind } from './model.ts'
import { insertFirings, type NewFiring } from './store.ts'

/** Bytes of firing inputs after which a batch is written. */
const BATCH_BYTES = 4 * 1024 * 1024

const namespaceOf = (name: string): string => name.split('.', 1)[0]

/** Whether a name is in a platform namespace without being a platform event. */
export const isReservedEventName = (name: string): boolean =>
  !eventTypes.find(name) && eventNames().some(event => namespaceOf(event) === namespaceOf(name))

/** @throws INVALID_EVENT_PATTERN */
export function checkPattern(pattern: string): void {
  const message = patternProblem(pattern)
  if (message !== null) raise('INVALID_EVENT_PATTERN', { message, meta: { field: 'event_pattern' } })
}

/** Returns the problem of a pattern that is malformed or is in a platform namespace but matches no event; else null. */
export function patternProblem(pattern: string): string | null {
  if (!isEventPattern(pattern)) return 'event_pattern must be *, prefix.* or a lowercase event name'
  if (pattern === '*') return null
  const names = eventNames()
  const siblings = names.filter(name => namespaceOf(name) === namespaceOf(pattern))
  const isMatch = (name: string) =>
    name === pattern || (pattern.endsWith('.*') && name.startsWith(pattern.slice(0, -1)))
  return siblings.length > 0 && !siblings.some(isMatch) ? `event_pattern ${pattern} matches no platform event` : null
}

const EventTrigger = z.object({
  ...triggerKind.row.shape,
  policy: z.unknown(),
  paused_at: z.string().nullable(),
  pause_reason: z.string().nullable(),
})
type EventTrigger = z.output<typeof EventTrigger>
const eventTriggerRow = sql.type(EventTrigger)

/** Lists the active event triggers of projects with their policy documents. Index triggers_event. */
const listEventTriggers = (db: Queryable, projectIds: readonly string[]): Promise<readonly EventTrigger[]> =>
  db.any(eventTriggerRow`
    select ${triggerKind.columns}, y.document as policy, p.paused_at, p.pause_reason
    from triggers t join projects p on p.id = t.project_id left join policies y on y.id = t.policy_id
    where t.type = 'event' and t.active and t.project_id = any(${sql.array([...projectIds], 'text')}) order by t.id`)

const envelopeRow = sql.type(
  z.object({
    id: z.string(),
    envelope: z.string().nullable(),
    causation: z.array(z.string()).nullable(),
    created_at: z.string(),
  }),
)

const listEnvelopes = (db: Queryable, ids: readonly string[]) =>
  db.any(envelopeRow`
    select id, envelope, causation, created_at from events where id = any(${sql.array([...ids], 'text')})`)

/** Cost of the filters of all triggers of one event, in brief evaluations: a thousand common filters cost one. */
const MAX_EVENT_COST = 4
/** Cost of the filters of one project, and of all projects, that a dispatch evaluates. */
const MAX_PROJECT_COST = 4
const MAX_DISPATCH_COST = 20

/** Events of a message whose triggers are matched after the dispatch. */
const MATCHED_EVENTS = 10

/** Evaluates the filters of the triggers of one event, within a common limit. */
class EventFilters {
  /** In brief evaluations. */
  cost = 0

  /** @throws ExpressionError */
  evaluate(filter: unknown, root: unknown): unknown {
    if (this.cost >= MAX_EVENT_COST)
      throw new ExpressionError('takes too long to evaluate, together with the other triggers of the event')
    const spent = freshBudget()
    try {
      return evaluateBriefly(filter, root, spent)
    } catch (error) {
      if (error instanceof NotBriefError) this.cost += 1
      throw error
    } finally {
      this.cost += briefShareOf(spent)
    }
  }
}

/** Cost of the filters that a dispatch has evaluated: the events of all projects wait meanwhile. */
class DispatchCost {
  #total = 0
  readonly #byProject = new Map<string, number>()

  add(project: string, cost: number): void {
    this.#total += cost
    this.#byProject.set(project, (this.#byProject.get(project) ?? 0) + cost)
  }

  isExceeded(project: string): boolean {
    return this.#total >= MAX_DISPATCH_COST || (this.#byProject.get(project) ?? 0) >= MAX_PROJECT_COST
  }
}

type LoadedEvent = DispatchedEvent & {
  text: string
  root: FanoutRoot
  chain: readonly string[]
  created_at: string
  filters: EventFilters
}

/** Firing of a trigger by an event. `firing` is null if the root of the event has reached its firing limit. */
type Match = { event: LoadedEvent; trigger: EventTrigger; firing: NewFiring | null }

/** Whether the policy of a trigger allows an event. Tags are read from the event's data. */
function isAllowedByPolicy(
  policies: Map<string, CompiledDocument>,
  trigger: EventTrigger,
  event: LoadedEvent,
  data: unknown,
): boolean {
  if (trigger.policy_id === null) return true
  let policy = policies.get(trigger.id)
  if (!policy) {
    policy = compileDocument(trigger.policy)
    policies.set(trigger.id, policy)
  }
  return policyAllowsEvent(policy, event, (data as { tags?: unknown } | null | undefined)?.tags)
}

/** Returns an error if the trigger is already in the event's chain or the chain is too deep; else null. */
function causationRefusal({ id }: EventTrigger, { chain }: LoadedEvent, max_depth: number): AppError | null {
  const reason = chain.includes(id) ? 'repeat' : chain.length >= max_depth ? 'depth' : null
  if (!reason) return null
  return new AppError('TRIGGER_CAUSATION_LIMIT', {
    message:
      reason === 'repeat'
        ? `Trigger ${id} is already in the causal chain of this event`
        : `The causal chain of this event has reached the limit of ${max_depth} triggers`,
    meta: { reason, causation_chain: chain, max_depth },
  })
}

/** Whether an event passes the filter of a trigger; an error if the filter cannot be evaluated. */
function passesFilter({ event_filter }: EventTrigger, envelope: object, { filters }: LoadedEvent): boolean | AppError {
  if (event_filter == null) return true
  try {
    return truthy(filters.evaluate(event_filter, envelope))
  } catch (error) {
    if (!(error instanceof ExpressionError)) throw error
    return new AppError('TRIGGER_INPUT_INVALID', { message: `event_filter: ${error.message}` })
  }
}

/**
 * Returns the firing of a trigger by an event, queued or with an error; null if the event does not fire the trigger. Its
 * input is mapped where it is fired.
 */
function buildFiring(
  services: Services,
  policies: Map<string, CompiledDocument>,
  trigger: EventTrigger,
  event: LoadedEvent,
  envelope: Record<string, unknown>,
): NewFiring | null {
  // Events from before the trigger was created do not fire it.
  if (new Date(event.created_at) < new Date(trigger.created_at)) return null
  if (!isAllowedByPolicy(policies, trigger, event, envelope.data)) return null
  const passes = passesFilter(trigger, envelope, event)
  if (passes === false) return null
  const { project_id, target_type } = trigger
  const firing: NewFiring = {
    id: newId(firingKind.prefix),
    project_id,
    trigger_id: trigger.id,
    source: 'event',
    target_type,
    input: { ...trigger.input, ...envelope },
    unmapped: trigger.input_mapping !== null,
    idempotency_key: `${event.id}:${trigger.id}`,
    causation_chain: [...event.chain],
    event_id: event.id,
    root_id: event.root.chained ? event.root.id : null,
  }
  const { paused_at, pause_reason } = trigger
  const refused =
    causationRefusal(trigger, event, services.config.TRIGGER_MAX_CAUSATION_DEPTH) ??
    (paused_at === null ? null : new AppError('PROJECT_PAUSED', { meta: { project_id, pause_reason } })) ??
    (passes === true ? null : passes)
  return refused ? { ...firing, error: refused.recorded() } : firing
}

/** Files an exception about a chain. Its effects count towards the same root and cannot fire the trigger again. */
function fileChainException(
  tx: Tx,
  { root, chain }: LoadedEvent,
  trigger_id: string,
  title: string,
  dedup_key: string,
  detail: object,
) {
  const nextChain = chain.includes(trigger_id) ? chain : [...chain, trigger_id]
  const { project_id } = root
  withTriggerChain([rootMark(root.id), ...nextChain], () =>
    fileExceptionInTx(tx, {
      project_id,
      kind: 'event_trigger_loop',
      title,
      detail: { trigger_id, ...detail, chain },
      dedup_key,
    }),
  )
}

function fileLoopException(tx: Tx, event: LoadedEvent, { trigger_id, error }: NewFiring): void {
  const reason = error?.meta?.reason
  const title = reason === 'repeat' ? 'Trigger would fire itself' : 'Chain of triggers too deep'
  fileChainException(tx, event, trigger_id, title, `${trigger_id}:${reason}`, { reason, event: event.name })
}

/** Returns the record of skipped firings, one per root and trigger. */
function skippedFiring({ event, trigger }: Match, max_firings: number): NewFiring {
  const { root, chain } = event
  const error = new AppError('TRIGGER_CAUSATION_LIMIT', {
    message: `${root.id} has reached the limit of ${max_firings} firings; further firings are skipped`,
    meta: { reason: 'breadth', root_id: root.id, causation_chain: chain, max_firings },
  })
  return {
    id: newId(firingKind.prefix),
    project_id: trigger.project_id,
    trigger_id: trigger.id,
    source: 'event',
    target_type: trigger.target_type,
    input: {},
    idempotency_key: `${root.id}:skipped`,
    causation_chain: [...chain],
    event_id: event.id,
    root_id: root.id,
    skipped: true,
    error: error.recorded(),
  }
}

/** Returns the events that match active triggers, with these triggers, ordered by root id. */
async function matchEvents(tx: Tx, events: readonly DispatchedEvent[]) {
  const triggers = await listEventTriggers(tx, [...new Set(events.map(({ project_id }) => project_id))])
  const byProject = Map.groupBy(triggers, ({ project_id }) => project_id)
  const matches = events.flatMap(event => {
    const matching = (byProject.get(event.project_id) ?? []).filter(({ event_pattern }) =>
      patternMatches(event_pattern as string, event.name),
    )
    return matching.length > 0 && !isReservedEventName(event.name) ? [{ event, matching }] : []
  })
  if (matches.length === 0) return []
  const rows = await listEnvelopes(
    tx,
    matches.map(({ event }) => event.id),
  )
  const rowsById = new Map(rows.map(row => [row.id, row]))
  const loaded = matches.flatMap(({ event, matching }) => {
    const { envelope: text, causation, created_at } = rowsById.get(event.id) ?? {}
    if (!text || !created_at) return []
    const rootId = rootOf(causation ?? [])
    const root: FanoutRoot = { id: rootId ?? event.id, project_id: event.project_id, chained: rootId !== null }
    const chain = triggersIn(causation ?? [])
    const loaded: LoadedEvent = { ...event, text, root, chain, created_at, filters: new EventFilters() }
    return [{ event: loaded, matching }]
  })
  const byRoot = Map.groupBy(loaded, ({ event }) => event.root.id)
  return [...byRoot.keys()].sort().flatMap(id => byRoot.get(id) ?? [])
}

/** Events whose triggers are matched after their dispatch, in the turn of their project. */
const matchingQueue = workQueue('trigger.match', {
  message: z.object({ project_id: z.string(), events: z.array(DispatchedEvent) }),
  project: ({ project_id }) => project_id,
  concern: 'trigger',
})

/** Queues events whose filters cost too much for the dispatch. */
function matchLater(tx: Tx, events: readonly LoadedEvent[]): void {
  for (const [project_id, ofProject] of Map.groupBy(events, event => event.project_id))
    for (let at = 0; at < ofProject.length; at += MATCHED_EVENTS) {
      const some = ofProject.slice(at, at + MATCHED_EVENTS)
      tx.send(matchingQueue, { project_id, events: some.map(event => DispatchedEvent.parse(event)) })
    }
}

/**
 * Fires the triggers that match events, in the transaction that marks the events as dispatched.
 * @param cost of the dispatch; events of a project that exceeds its share are queued. Null for queued events.
 */
async function fireEventTriggers(
  tx: Tx,
  services: Services,
  events: readonly DispatchedEvent[],
  cost: DispatchCost | null,
): Promise<void> {
  const matched = await matchEvents(tx, events)
  if (matched.length === 0) return
  const max = services.config.EVENT_FANOUT_MAX
  const limiter = new FanoutLimiter(max)
  await limiter.read(
    tx,
    matched.map(({ event }) => event.root),
  )
  const policies = new Map<string, CompiledDocument>()
  const skipped = new Map<string, Match>()
  const later: LoadedEvent[] = []
  let batch: Match[] = []
  let bytes = 0
  const yieldToEventLoop = eventLoopYielder()
  for (const { event, matching } of matched) {
    if (cost?.isExceeded(event.project_id)) {
      later.push(event)
      continue
    }
    const envelope = parseExactJson(event.text)
    for (const trigger of matching) {
      try {
        const firing = limiter.isExhausted(event.root)
          ? null
          : buildFiring(services, policies, trigger, event, envelope)
        if (!firing && !limiter.isExhausted(event.root)) continue
        batch.push({ event, trigger, firing })
        if (firing) bytes += event.text.length
      } catch (error) {
        // Fails closed for this trigger; the others continue.
        services.log.error({ err: error, trigger_id: trigger.id, event_id: event.id }, 'event trigger skipped')
      }
      if (bytes >= BATCH_BYTES) {
        await writeFirings(tx, limiter, max, batch, skipped)
        batch = []
        bytes = 0
      }
      await yieldToEventLoop()
    }
    cost?.add(event.project_id, event.filters.cost)
  }
  matchLater(tx, later)
  await writeFirings(tx, limiter, max, batch, skipped)
  await limiter.write(tx)
  for (const [root_id, { event, trigger }] of skipped)
    fileChainException(tx, event, trigger.id, 'Event caused too many trigger firings', `${root_id}:breadth`, {
      reason: 'breadth',
      root_id,
      max_firings: max,
      skipped: limiter.skippedCount(root_id),
      event: event.name,
    })
}

/** Writes firings and their messages within the limits of their roots. Adds the exceeded roots to `skipped`. */
async function writeFirings(
  tx: Tx,
  limiter: FanoutLimiter,
  max: number,
  batch: readonly Match[],
  skipped: Map<string, Match>,
): Promise<void> {
  if (batch.length === 0) return
  await limiter.lock(
    tx,
    batch.map(({ event }) => event.root),
  )
  const firings = new Map<string, { firing: NewFiring; event: LoadedEvent }>()
  for (const match of batch) {
    const { event, trigger, firing } = match
    if (limiter.admit(event.root) && firing) {
      firings.set(firing.id, { firing, event })
      continue
    }
    if (!skipped.has(event.root.id)) skipped.set(event.root.id, match)
    firings.set(`${event.root.id}:${trigger.id}`, { firing: skippedFiring(match, max), event })
  }
  const inserted = new Set(
    await insertFirings(
      tx,
      [...firings.values()].map(({ firing }) => firing),
    ),
  )
  for (const { firing, event } of firings.values()) {
    if (!inserted.has(firing.id)) continue
    const { error } = firing
    if (!error) wakeFiring(tx, firing)
    else if (error.code === 'TRIGGER_CAUSATION_LIMIT' && !firing.skipped) fileLoopException(tx, event, firing)
  }
}

const projectEventTriggers = (project: Fragment): Fragment => sql.fragment`
  select from triggers g where g.project_id = ${project} and g.type = 'event'`

/**
 * Condition: a project has an event trigger, active or not. An inactive trigger may be activated before the event
 * commits. Index triggers_event.
 */
export const hasEventTrigger = (project: Fragment): Fragment => sql.fragment`exists (${projectEventTriggers(project)})`

export const eventTriggers: EventSubscriber = {
  active: project => sql.fragment`exists (${projectEventTriggers(project)} and g.active)`,
  take: (tx, services, events) => fireEventTriggers(tx, services, events, new DispatchCost()),
}

export const eventTriggerHandlers = [
  handler(matchingQueue, { concurrency: 4 }, ({ events }, { services, complete }) =>
    services.write(async tx => {
      await fireEventTriggers(tx, services, events, null)
      complete(tx)
    }),
  ),
]
