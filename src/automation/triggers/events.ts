import { z } from 'zod'
import { fileExceptionInTx } from '../../control/exceptions/file-exception.ts'
import type { DispatchedEvent, EventSubscriber } from '../../control/webhooks/event-subscribers.ts'
import { policyAllowsEvent } from '../../control/webhooks/matching.ts'
import { AppError, raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { eventNames, eventTypes, isEventPattern, patternMatches } from '../../core/db/events.ts'
import { type Fragment, type Queryable, sql } from '../../core/db/sql.ts'
import { rootMark, rootOf, triggersIn, withTriggerChain } from '../../core/db/trigger-chain.ts'
import type { Tx } from '../../core/db/writer.ts'
import { ExpressionError, evaluate, reducedBudget, truthy } from '../../core/expressions/evaluate.ts'
import { plannedNames } from '../../core/iam/catalogue.ts'
import { type CompiledDocument, compileDocument } from '../../core/iam/policy.ts'
import { eventLoopYielder } from '../../core/process/event-loop.ts'
import type { Services } from '../../core/process/services.ts'
import { Breadth, type FanoutRoot } from './fanout.ts'
import { effectiveInput } from './input.ts'
import { firingKind, triggerKind } from './model.ts'
import { firingFailure } from './process-trigger-firing.ts'
import { triggerFiringQueue } from './queue.ts'
import { insertFirings, type NewFiring } from './store.ts'

/** Event triggers: which events fire them. */

/** Share of the budget of an expression that one of an event trigger may spend: half a millisecond. */
const SHARE = 1 / 20
/** Inputs of firings that are written by one statement: with the last of them they are more. */
const TOGETHER_BYTES = 4 * 1024 * 1024

/** Names and older spellings of the events of the platform, with those of modules to come. */
const platformEvents = (): string[] => [...eventNames(), ...plannedNames.all().flatMap(({ events }) => events)]

const namespaceOf = (name: string): string => name.split('.', 1)[0]

/** Whether a name is in a namespace of the platform, and names no event of it. */
export const isReservedEventName = (name: string): boolean =>
  !eventTypes.find(name) && platformEvents().some(event => namespaceOf(event) === namespaceOf(name))

/** @throws INVALID_EVENT_PATTERN */
export function checkPattern(pattern: string): void {
  const message = patternProblem(pattern)
  if (message !== null) raise('INVALID_EVENT_PATTERN', { message, meta: { field: 'event_pattern' } })
}

/** What is wrong with a pattern: another form, or a namespace of the platform of which it matches no event. */
export function patternProblem(pattern: string): string | null {
  if (!isEventPattern(pattern)) return 'The pattern must be *, prefix.* or an event name in lower case'
  if (pattern === '*') return null
  const names = platformEvents()
  const known = names.filter(name => namespaceOf(name) === namespaceOf(pattern))
  const matched = (name: string) =>
    name === pattern || (pattern.endsWith('.*') && name.startsWith(pattern.slice(0, -1)))
  return known.length > 0 && !known.some(matched) ? `The platform has no event that matches ${pattern}` : null
}

const Listening = z.object({
  ...triggerKind.row.shape,
  policy: z.unknown(),
  paused_at: z.string().nullable(),
  pause_reason: z.string().nullable(),
})
type Listening = z.output<typeof Listening>
const listening = sql.type(Listening)

/** The active event triggers of projects, with the documents of their policies. Index triggers_event. */
const listeningIn = (db: Queryable, projectIds: readonly string[]): Promise<readonly Listening[]> =>
  db.any(listening`
    select ${triggerKind.columns}, y.document as policy, p.paused_at, p.pause_reason
    from triggers t join projects p on p.id = t.project_id left join policies y on y.id = t.policy_id
    where t.type = 'event' and t.active and t.project_id = any(${sql.array([...projectIds], 'text')}) order by t.id`)

const Envelope = z.object({
  id: z.string(),
  envelope: z.string().nullable(),
  causation: z.array(z.string()).nullable(),
  created_at: z.string(),
})
const envelope = sql.type(Envelope)

const envelopesOf = (db: Queryable, ids: readonly string[]) =>
  db.any(envelope`
    select id, envelope, causation, created_at from events where id = any(${sql.array([...ids], 'text')})`)

type Event = DispatchedEvent & { text: string; root: FanoutRoot; chain: readonly string[]; created_at: string }

/** What an event and a trigger come to: a firing, or nothing where what the event began with has led to too much. */
type Outcome = { event: Event; trigger: Listening; firing: NewFiring | null }

/** Whether the policy of a trigger lets it see an event; tags are those of the event's data. */
function seen(gates: Map<string, CompiledDocument>, trigger: Listening, event: Event, data: unknown): boolean {
  if (trigger.policy_id === null) return true
  let gate = gates.get(trigger.id)
  if (!gate) {
    gate = compileDocument(trigger.policy)
    gates.set(trigger.id, gate)
  }
  return policyAllowsEvent(gate, event, (data as { tags?: unknown } | null | undefined)?.tags)
}

/** Why an event must not fire a trigger that others led to; null when it may. */
function causationRefusal({ id }: Listening, { chain }: Event, max_depth: number): AppError | null {
  const reason = chain.includes(id) ? 'repeat' : chain.length >= max_depth ? 'depth' : null
  if (!reason) return null
  return new AppError('TRIGGER_CAUSATION_LIMIT', {
    message: reason === 'repeat' ? 'The trigger has led to this event itself' : 'Too many triggers led to this event',
    meta: { reason, causation_chain: chain, max_depth },
  })
}

/** Whether the filter of a trigger lets an event by; what is wrong with a filter that costs too much. */
function filtered({ event_filter }: Listening, given: object): boolean | AppError {
  if (event_filter == null) return true
  try {
    return truthy(evaluate(event_filter, given, reducedBudget(SHARE)))
  } catch (error) {
    if (!(error instanceof ExpressionError)) throw error
    return new AppError('TRIGGER_INPUT_INVALID', { message: `event_filter: ${error.message}` })
  }
}

/** The firing of a trigger by an event: one that waits, or one that is refused; null where the event is not for it. */
function firingOf(
  services: Services,
  gates: Map<string, CompiledDocument>,
  trigger: Listening,
  event: Event,
): NewFiring | null {
  // What happened before it was there does not concern it.
  if (new Date(event.created_at) < new Date(trigger.created_at)) return null
  const given = JSON.parse(event.text) as Record<string, unknown>
  if (!seen(gates, trigger, event, given.data)) return null
  const isWanted = filtered(trigger, given)
  if (isWanted === false) return null
  const { project_id, target_type } = trigger
  const firing: NewFiring = {
    id: newId(firingKind.prefix),
    project_id,
    trigger_id: trigger.id,
    source: 'event',
    target_type,
    input: { ...trigger.input, ...given },
    idempotency_key: `${event.id}:${trigger.id}`,
    causation_chain: [...event.chain],
    event_id: event.id,
    root_id: event.root.chained ? event.root.id : null,
  }
  const { paused_at, pause_reason } = trigger
  const refused =
    causationRefusal(trigger, event, services.config.TRIGGER_MAX_CAUSATION_DEPTH) ??
    (paused_at === null ? null : new AppError('PROJECT_PAUSED', { meta: { project_id, pause_reason } })) ??
    (isWanted === true ? null : isWanted)
  if (refused) return { ...firing, error: refused.recorded() }
  try {
    const facts = {
      id: firing.id,
      source: firing.source,
      scheduled_for: null,
      fired_at: services.clock.now().toISOString(),
    }
    return { ...firing, input: effectiveInput(trigger, given, facts, reducedBudget(SHARE)) }
  } catch (error) {
    return { ...firing, error: firingFailure(error) }
  }
}

/** Files an exception of a chain. What it leads to in turn counts to the same root, and does not fire the trigger again. */
function file(tx: Tx, { root, chain }: Event, trigger_id: string, title: string, dedup_key: string, detail: object) {
  const behind = chain.includes(trigger_id) ? chain : [...chain, trigger_id]
  const { project_id } = root
  withTriggerChain([rootMark(root.id), ...behind], () =>
    fileExceptionInTx(tx, {
      project_id,
      kind: 'event_trigger_loop',
      title,
      detail: { trigger_id, ...detail, chain },
      dedup_key,
    }),
  )
}

function fileLoop(tx: Tx, event: Event, { trigger_id, error }: NewFiring): void {
  const reason = error?.meta?.reason
  const title = reason === 'repeat' ? 'A trigger would fire itself' : 'Triggers fire one another too often'
  file(tx, event, trigger_id, title, `${trigger_id}:${reason}`, { reason, event: event.name })
}

/** The record that a trigger was left out: one for each root, however many firings that was too broad for. */
function skippedFiring({ event, trigger }: Outcome, max_firings: number): NewFiring {
  const { root, chain } = event
  const error = new AppError('TRIGGER_CAUSATION_LIMIT', {
    message: `${root.id} has led to ${max_firings} firings; this one and those behind it are skipped`,
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

/** The events that active triggers of their projects want, by the ids of what each began with. */
async function wantedOf(tx: Tx, events: readonly DispatchedEvent[]) {
  const triggers = await listeningIn(tx, [...new Set(events.map(({ project_id }) => project_id))])
  const byProject = Map.groupBy(triggers, ({ project_id }) => project_id)
  const wanted = events.flatMap(event => {
    const matching = (byProject.get(event.project_id) ?? []).filter(({ event_pattern }) =>
      patternMatches(event_pattern as string, event.name),
    )
    return matching.length > 0 && !isReservedEventName(event.name) ? [{ event, matching }] : []
  })
  if (wanted.length === 0) return []
  const stored = await envelopesOf(
    tx,
    wanted.map(({ event }) => event.id),
  )
  const texts = new Map(stored.map(row => [row.id, row]))
  const found = wanted.flatMap(({ event, matching }) => {
    const { envelope: text, causation, created_at } = texts.get(event.id) ?? {}
    if (!text || !created_at) return []
    const began = rootOf(causation ?? [])
    const root: FanoutRoot = { id: began ?? event.id, project_id: event.project_id, chained: began !== null }
    const read: Event = { ...event, text, root, chain: triggersIn(causation ?? []), created_at }
    return [{ event: read, matching }]
  })
  const byRoot = Map.groupBy(found, ({ event }) => event.root.id)
  return [...byRoot.keys()].sort().flatMap(id => byRoot.get(id) ?? [])
}

/** Fires the triggers that want some events, in the transaction that marks these as dispatched. */
async function take(tx: Tx, services: Services, events: readonly DispatchedEvent[]): Promise<void> {
  const wanted = await wantedOf(tx, events)
  if (wanted.length === 0) return
  const max = services.config.EVENT_FANOUT_MAX
  const breadth = new Breadth(max)
  await breadth.read(
    tx,
    wanted.map(({ event }) => event.root),
  )
  const gates = new Map<string, CompiledDocument>()
  const skipped = new Map<string, Outcome>()
  let outcomes: Outcome[] = []
  let bytes = 0
  const breathe = eventLoopYielder()
  for (const { event, matching } of wanted) {
    for (const trigger of matching) {
      try {
        const firing = breadth.isSpent(event.root) ? null : firingOf(services, gates, trigger, event)
        if (!firing && !breadth.isSpent(event.root)) continue
        outcomes.push({ event, trigger, firing })
        if (firing) bytes += trigger.input_mapping ? JSON.stringify(firing.input).length : event.text.length
      } catch (error) {
        // Others go on; what cannot be evaluated does not let the event through.
        services.log.error({ err: error, trigger_id: trigger.id, event_id: event.id }, 'event trigger left out')
      }
      if (bytes >= TOGETHER_BYTES) {
        await write(tx, breadth, max, outcomes, skipped)
        outcomes = []
        bytes = 0
      }
      await breathe()
    }
  }
  await write(tx, breadth, max, outcomes, skipped)
  await breadth.write(tx)
  for (const [root_id, { event, trigger }] of skipped)
    file(tx, event, trigger.id, 'An event has led to too many firings of triggers', `${root_id}:breadth`, {
      reason: 'breadth',
      root_id,
      max_firings: max,
      skipped: breadth.skippedOf(root_id),
      event: event.name,
    })
}

/** Writes firings with what follows from them, as many as their roots may lead to. `skipped` gets the roots of the others. */
async function write(
  tx: Tx,
  breadth: Breadth,
  max: number,
  outcomes: readonly Outcome[],
  skipped: Map<string, Outcome>,
): Promise<void> {
  if (outcomes.length === 0) return
  await breadth.lock(
    tx,
    outcomes.map(({ event }) => event.root),
  )
  const firings = new Map<string, { firing: NewFiring; event: Event }>()
  for (const outcome of outcomes) {
    const { event, trigger, firing } = outcome
    if (breadth.admits(event.root) && firing) {
      firings.set(firing.id, { firing, event })
      continue
    }
    if (!skipped.has(event.root.id)) skipped.set(event.root.id, outcome)
    firings.set(`${event.root.id}:${trigger.id}`, { firing: skippedFiring(outcome, max), event })
  }
  const made = new Set(
    await insertFirings(
      tx,
      [...firings.values()].map(({ firing }) => firing),
    ),
  )
  for (const { firing, event } of firings.values()) {
    if (!made.has(firing.id)) continue
    const { id, project_id, error } = firing
    if (!error) tx.send(triggerFiringQueue, { firing_id: id, project_id })
    else if (error.code === 'TRIGGER_CAUSATION_LIMIT' && !firing.skipped) fileLoop(tx, event, firing)
  }
}

const ofProject = (project: Fragment): Fragment => sql.fragment`
  select from triggers g where g.project_id = ${project} and g.type = 'event'`

/** Whether a project has an event trigger, also one that may be switched on before an event is committed. Index triggers_event. */
export const hasEventTrigger = (project: Fragment): Fragment => sql.fragment`exists (${ofProject(project)})`

export const eventTriggers: EventSubscriber = {
  active: project => sql.fragment`exists (${ofProject(project)} and g.active)`,
  take,
}
